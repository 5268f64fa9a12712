#include "resync.hpp"

#include <algorithm>

#include "ranges.hpp"

namespace dledger {
namespace {

constexpr int64_t kCandidateWindow = kMaxEntrySize;

constexpr uint64_t kMinWrongRise = 1 << 16;  // no election raises a term by so much

bool is_one_bit(int64_t a, int64_t b) {
  const uint64_t bits = static_cast<uint64_t>(a ^ b);
  return bits != 0 && (bits & (bits - 1)) == 0;
}

bool is_better(const SegmentView& view, const Chain& chain, const Chain& best, const Expectation& expected) {
  if (chain.end <= best.end) return false;  // it lies inside
  // Without positions, a single entry at the end may have a wrong index.
  const bool is_doubtful = expected.count == 0 && chain.length == 1 && best.length > 1;
  return chain.outranks(view, best) && !is_doubtful;
}

// Whether the entry at pos has the index after the damaged entry's, by that entry's header or by the entries before.
bool is_only_one_lost(const SegmentView& view, int64_t gap, int64_t pos, const Expectation& expected) {
  const int64_t index = EntryHeader{view.at(pos)}.index();
  if (EntryHeader{view.at(gap)}.index() == index - 1) return true;
  return std::any_of(expected.positions, expected.positions + expected.count,
                     [&](const LogPosition& position) { return position.index == index - 2; });
}

// Whether the size that leads to pos, where the log is closed, is the right one. If the other one is possible too, or
// there is none, a size that leads past the written bytes is wrong.
bool ends_at(const SegmentView& view, int64_t pos, const int64_t sizes[2], int count) {
  int64_t size = 0;
  const bool is_sure =
      count == 2 && (std::min(sizes[0], sizes[1]) < kEntryHeaderSize || std::max(sizes[0], sizes[1]) > kMaxEntrySize);
  const bool is_written = *view.at(pos - 1) != 0 || view.blank_at(pos, size) != Blank::None;
  return is_sure || is_written;
}

// Whether the header at pos has a valid magic and the position pos + shift, even if the rest is damaged.
bool has_own_pos(const SegmentView& view, int64_t pos, uint64_t shift) {
  if (!view.is_dledger() || view.file_end() - pos < kEntryHeaderSize) return false;
  const EntryHeader header{view.at(pos)};
  return header.is_magic() && shift_of(view, pos) == shift;
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
    expected.shift = known_shift_;
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
  known_shift_ = expected.shift = shift_of(view, last());
  entries_ = 0;
  return expected;
}

bool Chain::contradicts(const SegmentView& view, int64_t pos) const {
  // The bytes between are too few for a lost message: the chain is in the body of one that ends here.
  if (!view.is_dledger()) return pos > end && pos - end < kMinMessageSize;
  const int64_t lost = EntryHeader{view.at(pos)}.index() - EntryHeader{view.at(last)}.index() - 1;
  return lost < 0 || pos < end || lost > (pos - end) / kEntryHeaderSize;
}

bool Chain::outranks(const SegmentView& view, const Chain& other) const {
  if (is_stale_after(view, other)) return false;
  if (strong != other.strong) return strong;
  if (closed != other.closed) return closed;
  return length > other.length;
}

bool Chain::is_stale_after(const SegmentView& view, const Chain& other) const {
  if (!view.is_dledger()) return false;
  const EntryHeader here{view.at(first)};
  return EntryHeader{view.at(other.first)}.index() < here.index() &&
         here.term() < EntryHeader{view.at(other.last)}.term();
}

bool Chain::leads_to(const SegmentView& view, int64_t pos) const {
  if (pos < end) return false;
  if (!view.is_dledger()) return !contradicts(view, pos);
  // A wrong term may have ended the chain.
  const LogPosition position{EntryHeader{view.at(last)}.index(), EntryHeader{view.at(first)}.term(), end};
  const EntryHeader header{view.at(pos)};
  return position.allows(header, pos) || (pos == end && header.index() - 1 == position.index);
}

uint64_t shift_of(const SegmentView& view, int64_t pos) {
  // Unsigned, because a position in a header can be any number.
  return static_cast<uint64_t>(EntryHeader{view.at(pos)}.pos()) - static_cast<uint64_t>(pos);
}

bool is_only_index_damaged(const SegmentView& view, int64_t last, int64_t pos, int64_t size) {
  if (!view.is_dledger()) return false;
  const EntryHeader first{view.at(last)}, header{view.at(pos)};
  if (header.term() < first.term()) return false;
  const int64_t next = pos + size;
  if (view.entry_size(next) == 0 || !follows(view, pos, next)) return false;
  // Unsigned, because an index can be INT64_MAX.
  return static_cast<uint64_t>(EntryHeader{view.at(next)}.index()) != static_cast<uint64_t>(first.index()) + 2;
}

bool is_only_term_damaged(const SegmentView& view, int64_t before, int64_t last, int64_t pos) {
  if (!view.is_dledger()) return false;
  const EntryHeader raised{view.at(last)}, next{view.at(pos)};
  if (next.index() - 1 != raised.index() || next.term() >= raised.term()) return false;
  bool is_flipped = is_one_bit(raised.term(), next.term()), is_odd_size = false;
  if (before >= 0) {
    const EntryHeader header{view.at(before)};
    if (raised.index() - 1 != header.index() || header.term() > next.term()) return false;
    is_flipped = is_flipped || is_one_bit(raised.term(), header.term());
    is_odd_size = raised.size() != header.size() && raised.size() != next.size();
  }
  // Unsigned, because a term can be INT64_MAX.
  const uint64_t rise = static_cast<uint64_t>(raised.term()) - static_cast<uint64_t>(next.term());
  return rise >= kMinWrongRise || (is_flipped && (rise > 1 || is_odd_size));
}

Resync::Resync(const SegmentId& id, int64_t start)
    : start_(start), has_witness_(id.witness && id.is_dledger), is_history_known_(start == id.base || !id.is_dledger) {
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
  if (!view.id().witness) return search(view, gap, gap, limit, expected, nullptr);
  if (gap >= view.file_end()) return -1;
  const uint8_t* const header_end = view.at(std::min(gap + kEntryHeaderSize, view.file_end()));
  if (skip_zeros(view.at(gap), header_end) == header_end) {
    const int64_t found = search(view, gap, gap, limit, expected, nullptr);
    // The end of a log, and no damage.
    if (found < 0 && view.is_closed_at(gap)) return -1;
  }
  return next_known(view, gap, limit, expected);
}

int64_t Resync::next_known(const SegmentView& view, int64_t gap, int64_t limit, const Expectation& expected) {
  for (int64_t at = gap; at < view.file_end();) {
    if (const auto known = known_at(view, at)) {
      if (known->is_whole && known->pos == at) return at;
      at = known->end;
      continue;
    }
    const auto following = known_after(view, at);
    const int64_t found = search(view, gap, at, limit, expected, following ? &*following : nullptr);
    if (found >= 0 || !following) return found;
    at = following->pos;
  }
  return -1;
}

int64_t Resync::search(const SegmentView& view, int64_t gap, int64_t at, int64_t limit, const Expectation& expected,
                       const KnownFrame* following) {
  const int64_t size = at > gap ? view.entry_size(at) : 0;
  if (size > 0 && expected.allows(view, at, size) && is_before(view, at, size, following)) return at;
  if (size == 0) {
    if (at > gap && following == nullptr && view.is_closed_at(at)) return at;
    const int64_t found = follow_sizes(view, at, expected, following);
    if (found >= 0) return found;
  }
  const int64_t start = size > 0 ? at : at + 1;
  // Where an entry may have any position, one with an unexpected position counts only if nothing else is there.
  if (!view.id().check_pos) {
    const int64_t found = choose(view, start, limit, expected, following, expected.shift.value_or(0));
    if (found >= 0) return found;
  }
  return choose(view, start, limit, expected, following, std::nullopt);
}

// Whether the entry at pos can be of the log before the known entry.
bool Resync::is_before(const SegmentView& view, int64_t pos, int64_t size, const KnownFrame* following) const {
  if (following == nullptr) return true;
  if (pos + size > following->pos) return false;
  return !following->is_whole || walk_chain(view, pos, size, following).leads_to(view, following->pos);
}

int64_t Resync::choose(const SegmentView& view, int64_t start, int64_t limit, const Expectation& expected,
                       const KnownFrame* following, std::optional<uint64_t> shift) {
  rest_.length = 0;
  if (!rests_.empty()) rests_.clear();

  Chain best;
  bool has_best = false, is_expected = false;
  int64_t seen = 0, compared = 0;
  const int64_t most = following != nullptr ? std::min(following->pos, view.file_end()) : view.file_end();
  int64_t from = start, to = std::min(limit, most);
  for (int64_t pos = view.find(from, to); pos < to; pos = view.find(from, to)) {
    from = pos + 1;
    if (has_best && ++seen > kMaxCandidates) break;
    const int64_t size = view.entry_size(pos);
    if (size <= 0) continue;  // the file is being written
    if (following != nullptr && pos + size > most) continue;
    if (shift && shift_of(view, pos) != *shift) continue;
    const bool allowed = expected.allows(view, pos, size);
    if (has_best && best.leads_to(view, pos) && (is_expected || expected.agreement <= 1 || !allowed)) break;
    if (!allowed && (is_expected || expected.strict)) continue;
    if (has_best && is_expected && !best.contradicts(view, pos)) continue;
    const Chain chain = chain_at(view, pos, size, following);
    if (following != nullptr && following->is_whole && !chain.leads_to(view, following->pos)) continue;
    compared_[compared++ % kMaxCandidates] = {chain, allowed};
    if (!allowed && !chain.strong && (chain.length == 1 || expected.agreement > 1)) {
      // It may lead to the entry that is chosen, even past the limit: every split must see the same.
      if (!has_best) to = std::max(to, std::min(chain.end + kCandidateWindow, most));
      continue;
    }
    // An entry can contain others, which are compared with it: the search continues inside the last one.
    from = chain.last + 1;
    rest_.length = 0;
    if (has_best && is_expected == allowed && !is_better(view, chain, best, expected)) {
      seen += chain.length - 1;
      continue;
    }
    best = chain;
    has_best = true;
    is_expected = allowed;
    seen = 0;
    if (best.strong) break;
    to = std::min(best.end + kCandidateWindow, most);
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
int64_t Resync::follow_sizes(const SegmentView& view, int64_t gap, const Expectation& expected,
                             const KnownFrame* following) const {
  int64_t sizes[2];
  const int count = view.sizes_at(gap, sizes);
  const int64_t end = following != nullptr ? following->pos : view.file_end();
  const int64_t left = end - gap;
  if (following != nullptr && left >= view.min_size() && std::find(sizes, sizes + count, left) != sizes + count) {
    return end;
  }
  const bool agree = count == 1 || (count == 2 && sizes[0] == sizes[1]);
  // If the two sizes differ, one is wrong. The rest of the header must then confirm the other.
  if (!agree && !has_own_pos(view, gap, expected.shift.value_or(0))) return -1;
  for (int i = 0; i < (agree ? 1 : count); i++) {
    if (sizes[i] < view.min_size() || sizes[i] > kMaxEntrySize || sizes[i] > left) continue;
    const int64_t pos = gap + sizes[i], size = view.entry_size(pos);
    if (size == 0) {
      const bool is_confirmed = agree && count > 1;
      const bool is_end = following == nullptr && (is_confirmed || ends_at(view, pos, sizes, count));
      if (is_end && view.is_closed_at(pos)) return pos;
    } else if (expected.allows(view, pos, size) && (agree || is_only_one_lost(view, gap, pos, expected)) &&
               is_before(view, pos, size, following)) {
      return pos;
    }
  }
  return -1;
}

Chain Resync::chain_at(const SegmentView& view, int64_t pos, int64_t size, const KnownFrame* following) {
  Chain chain;
  if (rest_.length > 0 && rest_.first == pos) {
    chain = rest_;
    rest_.length = 0;
  } else if (const auto known = rests_.find(pos); known != rests_.end()) {
    chain = known->second;
    rests_.erase(known);
  } else {
    chain = walk_chain(view, pos, size, following);
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

// The chain from the entry at pos on, up to the known entry that follows.
Chain Resync::walk_chain(const SegmentView& view, int64_t pos, int64_t size, const KnownFrame* following) const {
  Chain chain{pos, size, pos, pos + size, 1, false, false};
  while (chain.end - pos < kSpanWindow) {
    if (following != nullptr && chain.end == following->pos) {
      chain.closed = true;
      return chain;
    }
    const int64_t next = view.entry_size(chain.end);
    if (next > 0 && following != nullptr && chain.end + next > following->pos) return chain;
    if (next == 0 || !follows(view, chain.last, chain.end)) {
      chain.closed = next == 0 && following == nullptr && view.is_closed_at(chain.end);
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
