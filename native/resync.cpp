#include "resync.hpp"

#include <algorithm>

#include "ranges.hpp"

namespace dledger {
namespace {

constexpr int64_t kCandidateWindow = kMaxEntrySize;

bool follows(const SegmentView& view, int64_t last, int64_t next) {
  if (!view.is_dledger()) return true;
  const EntryHeader a{view.at(last)}, b{view.at(next)};
  return b.index() - 1 == a.index() && b.term() >= a.term();
}

bool is_better(const Chain& chain, const Chain& best, const Expectation& expected) {
  if (chain.end <= best.end) return false;  // it lies inside
  // Without positions, a single entry at the end may have a wrong index.
  const bool is_doubtful = expected.count == 0 && chain.length == 1 && best.length > 1;
  return chain.outranks(best) && !is_doubtful;
}

// Whether the entry at pos has the index after the damaged entry's, by that entry's header or by the entries before.
bool is_only_one_lost(const SegmentView& view, int64_t gap, int64_t pos, const Expectation& expected) {
  const int64_t index = EntryHeader{view.at(pos)}.index();
  if (EntryHeader{view.at(gap)}.index() == index - 1) return true;
  return std::any_of(expected.positions, expected.positions + expected.count,
                     [&](const LogPosition& position) { return position.index == index - 2; });
}

// Whether the size that leads to pos, where the log is closed, is the right one of two. If both sizes are possible, one
// that leads past the written bytes is wrong.
bool ends_at(const SegmentView& view, int64_t pos, const int64_t sizes[2]) {
  int64_t size = 0;
  const bool is_sure = std::min(sizes[0], sizes[1]) < kEntryHeaderSize || std::max(sizes[0], sizes[1]) > kMaxEntrySize;
  const bool is_written = *view.at(pos - 1) != 0 || view.blank_at(pos, size) != Blank::None;
  return is_sure || is_written;
}

// Whether the header at pos has a valid magic and that position, even if the rest is damaged.
bool has_own_pos(const SegmentView& view, int64_t pos) {
  if (!view.is_dledger() || view.file_end() - pos < kEntryHeaderSize) return false;
  const EntryHeader header{view.at(pos)};
  return header.is_magic() && header.pos() == pos;
}

}  // namespace

bool Expectation::allows(const SegmentView& view, int64_t pos, int64_t size) const {
  if (!view.is_dledger()) {
    if (!min_store_timestamp) return true;
    Message message;
    MessageFault fault;
    return parse_message(view.at(pos), size, message, fault) && message.store_timestamp() >= *min_store_timestamp;
  }
  const EntryHeader header{view.at(pos)};
  return count == 0 || std::any_of(positions, positions + count,
                                   [&](const LogPosition& position) { return position.allows(header, pos); });
}

std::optional<LogPosition> end_before(const SegmentId& id) {
  if (!id.before) return std::nullopt;
  // DLedger 0.4.0 can begin a file with a blank, in which no entry is lost.
  const auto [index, term, end] = *id.before;
  return id.check_pos ? LogPosition{index, term, end} : LogPosition{index - 1, term, end - kEntryHeaderSize};
}

void WalkHistory::begin_after(const std::optional<LogPosition>& before) {
  if (!before) return;
  known_[0] = *before;
  known_count_ = 1;
  known_agreement_ = kRecentEntries;
}

void WalkHistory::prepend(const WalkHistory& earlier) {
  WalkHistory joined = earlier;
  for (uint64_t i = 0; i < entries_; i++) joined.add(recent_[i % kRing]);
  *this = joined;
}

Expectation WalkHistory::expected_at(const SegmentView& view, int64_t pos) {
  Expectation expected;
  if (entries_ == 0 || !view.is_dledger()) {
    for (int i = 0; i < known_count_; i++) expected.add(known_[i]);
    expected.agreement = known_agreement_;
    entries_ = 0;
    return expected;
  }
  const int recent = static_cast<int>(std::min<uint64_t>(entries_, kRecentEntries));
  // Each recent entry gives the index that the last of them should have; most may be right.
  int64_t indexes[kRecentEntries], counts[kRecentEntries], min_term = 0;
  for (int i = 0; i < recent; i++) {
    const EntryHeader header{view.at(recent_[(entries_ - 1 - static_cast<uint64_t>(i)) % kRing])};
    indexes[i] = header.index() > INT64_MAX - i ? INT64_MAX : header.index() + i;
    min_term = i == 0 ? header.term() : std::min(min_term, header.term());
  }
  // A single entry proves little: its term is not used, and what was known before it stays possible.
  const bool is_alone = recent == 1;
  if (is_alone) min_term = -1;
  for (int i = 0; i < recent; i++) counts[i] = std::count(indexes, indexes + recent, indexes[i]);
  expected.agreement = *std::max_element(counts, counts + recent);
  for (int i = 0; i < recent; i++) {
    const bool is_new = std::find(indexes, indexes + i, indexes[i]) == indexes + i;
    if (is_new && counts[i] == expected.agreement) expected.add({indexes[i], min_term, pos});
  }
  const int own = expected.count;
  for (int i = 0; is_alone && i < known_count_; i++) expected.add(known_[i]);
  std::copy(expected.positions, expected.positions + own, known_);
  known_count_ = own;
  known_agreement_ = expected.agreement;
  entries_ = 0;
  return expected;
}

bool Chain::contradicts(const SegmentView& view, int64_t pos) const {
  if (!view.is_dledger()) return false;
  const int64_t lost = EntryHeader{view.at(pos)}.index() - EntryHeader{view.at(last)}.index() - 1;
  return lost < 0 || pos < end || lost > (pos - end) / kEntryHeaderSize;
}

bool Chain::outranks(const Chain& other) const {
  if (strong != other.strong) return strong;
  if (closed != other.closed) return closed;
  return length > other.length;
}

bool Chain::leads_to(const SegmentView& view, int64_t pos) const {
  if (pos < end) return false;
  if (!view.is_dledger()) return true;
  // A wrong term may have ended the chain.
  const LogPosition position{EntryHeader{view.at(last)}.index(), EntryHeader{view.at(first)}.term(), end};
  const EntryHeader header{view.at(pos)};
  return position.allows(header, pos) || (pos == end && header.index() - 1 == position.index);
}

Resync::Resync(const SegmentId& id, int64_t start)
    : start_(start), is_history_known_(start == id.base || !id.is_dledger) {
  if (start == id.base) history.begin_after(end_before(id));
}

Expectation Resync::expected_at(const SegmentView& view, int64_t gap) {
  if (!is_history_known_) {
    is_history_known_ = true;
    if (!history.is_full()) {
      Resync earlier(view.id(), view.base());
      walk(view, earlier, view.base(), start_, Visitor());
      history.prepend(earlier.history);
    }
  }
  return history.expected_at(view, gap);
}

int64_t Resync::next(const SegmentView& view, int64_t gap, int64_t limit) {
  return next(view, gap, limit, expected_at(view, gap));
}

int64_t Resync::next(const SegmentView& view, int64_t gap, int64_t limit, const Expectation& expected) {
  const int64_t found = follow_sizes(view, gap, expected);
  if (found >= 0) return found;
  rest_.length = 0;
  if (!rests_.empty()) rests_.clear();

  Chain best;
  bool has_best = false, is_expected = false;
  int64_t seen = 0, compared = 0;
  int64_t from = gap + 1, to = std::min(limit, view.file_end());
  for (int64_t pos = view.find(from, to); pos < to; pos = view.find(from, to)) {
    from = pos + 1;
    if (has_best && ++seen > kMaxCandidates) break;
    const int64_t size = view.entry_size(pos);
    if (size <= 0) continue;  // the file is being written
    const bool allowed = expected.allows(view, pos, size);
    if (has_best && best.leads_to(view, pos) && (is_expected || expected.agreement <= 1 || !allowed)) break;
    if (!allowed && (is_expected || expected.strict)) continue;
    if (has_best && is_expected && !best.contradicts(view, pos)) continue;
    const Chain chain = chain_at(view, pos, size);
    compared_[compared++ % kMaxCandidates] = {chain, allowed};
    if (!allowed && !chain.strong && (chain.length == 1 || expected.agreement > 1)) {
      // It may lead to the entry that is chosen, even past the limit: every split must see the same.
      if (!has_best) to = std::max(to, std::min(chain.end + kCandidateWindow, view.file_end()));
      continue;
    }
    // An entry can contain others, which are compared with it: the search continues inside the last one.
    from = chain.last + 1;
    rest_.length = 0;
    if (has_best && is_expected == allowed && !is_better(chain, best, expected)) {
      seen += chain.length - 1;
      continue;
    }
    best = chain;
    has_best = true;
    is_expected = allowed;
    seen = 0;
    if (best.strong) break;
    to = std::min(best.end + kCandidateWindow, view.file_end());
  }
  if (!has_best) return -1;
  // A chain that is too weak by itself but leads to the best one comes first.
  for (int64_t i = std::max<int64_t>(0, compared - kMaxCandidates); i < compared; i++) {
    const auto& [chain, allowed] = compared_[i % kMaxCandidates];
    const bool is_near = best.first - chain.end <= kCandidateWindow;
    if (is_near && (allowed || !is_expected) && chain.leads_to(view, best.first)) return chain.first;
  }
  return best.first;
}

// Where the sizes in the damaged header lead, if an entry or the closing blank confirms it; else -1.
int64_t Resync::follow_sizes(const SegmentView& view, int64_t gap, const Expectation& expected) const {
  int64_t sizes[2];
  const int count = view.sizes_at(gap, sizes);
  const bool agree = count == 1 || (count == 2 && sizes[0] == sizes[1]);
  // If the two sizes differ, one is wrong. The rest of the header must then confirm the other.
  if (!agree && !has_own_pos(view, gap)) return -1;
  for (int i = 0; i < (agree ? 1 : count); i++) {
    if (sizes[i] < view.min_size() || sizes[i] > kMaxEntrySize || sizes[i] > view.file_end() - gap) continue;
    const int64_t pos = gap + sizes[i], size = view.entry_size(pos);
    if (size == 0) {
      if ((agree || ends_at(view, pos, sizes)) && view.is_closed_at(pos)) return pos;
    } else if (expected.allows(view, pos, size) && (agree || is_only_one_lost(view, gap, pos, expected))) {
      return pos;
    }
  }
  return -1;
}

Chain Resync::chain_at(const SegmentView& view, int64_t pos, int64_t size) {
  Chain chain;
  if (rest_.length > 0 && rest_.first == pos) {
    chain = rest_;
    rest_.length = 0;
  } else if (const auto known = rests_.find(pos); known != rests_.end()) {
    chain = known->second;
    rests_.erase(known);
  } else {
    chain = walk_chain(view, pos, size);
  }
  if (chain.length > 1 && !chain.strong) {
    if (rest_.length > 0) rests_[rest_.first] = rest_;
    rest_ = chain;
    rest_.first += chain.first_size;
    rest_.first_size = view.entry_size(rest_.first);
    rest_.length--;
  }
  return chain;
}

Chain Resync::walk_chain(const SegmentView& view, int64_t pos, int64_t size) const {
  Chain chain{pos, size, pos, pos + size, 1, false, false};
  while (chain.end - pos < kSpanWindow) {
    const int64_t next = view.entry_size(chain.end);
    if (next == 0 || !follows(view, chain.last, chain.end)) {
      chain.closed = next == 0 && view.is_closed_at(chain.end);
      return chain;
    }
    view.prefetch(chain.end + 12 * next);
    chain.last = chain.end;
    chain.end += next;
    chain.length++;
  }
  chain.strong = true;
  return chain;
}

}  // namespace dledger
