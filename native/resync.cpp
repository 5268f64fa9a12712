#include "resync.hpp"

#include <algorithm>

#include "ranges.hpp"

namespace dledger {
namespace {

constexpr int64_t kRivalWindow = kMaxEntrySize;

bool follows(const SegmentView& view, int64_t last, int64_t next) {
  if (!view.is_dledger()) return true;
  const EntryHeader a{view.at(last)}, b{view.at(next)};
  return b.index() - 1 == a.index() && b.term() >= a.term();
}

bool is_better(const Chain& chain, const Chain& best, const Expectation& expected) {
  if (chain.end <= best.end) return false;  // it lies inside
  // Where nothing is known, a single entry at the end may have a wrong index.
  const bool is_doubtful = expected.count == 0 && chain.length == 1 && best.length > 1;
  return chain.outranks(best) && !is_doubtful;
}

// Whether the entry at pos has the index right behind the damaged entry's, by the entries before it or by its own.
bool is_only_one_lost(const SegmentView& view, int64_t gap, int64_t pos, const Expectation& expected) {
  const int64_t index = EntryHeader{view.at(pos)}.index();
  if (EntryHeader{view.at(gap)}.index() == index - 1) return true;
  return std::any_of(expected.places, expected.places + expected.count,
                     [&](const Place& place) { return place.index == index - 2; });
}

// Whether of a damaged header's two sizes the one that leads to pos is right, where the log is closed. Of two that are
// possible, one that leads behind what was written is the wrong one.
bool ends_at(const SegmentView& view, int64_t pos, const int64_t sizes[2]) {
  int64_t size = 0;
  const bool is_sure = std::min(sizes[0], sizes[1]) < kEntryHeaderSize || std::max(sizes[0], sizes[1]) > kMaxEntrySize;
  const bool is_written = *view.at(pos - 1) != 0 || view.blank_at(pos, size) != Blank::None;
  return is_sure || is_written;
}

// Whether the header at pos has a magic and that position, whatever else it says.
bool names_itself(const SegmentView& view, int64_t pos) {
  if (!view.is_dledger() || view.file_end() - pos < kEntryHeaderSize) return false;
  const EntryHeader header{view.at(pos)};
  return header.is_magic() && header.pos() == pos;
}

}  // namespace

bool Expectation::allows(const SegmentView& view, int64_t pos, int64_t size) const {
  if (!view.is_dledger()) {
    if (!store_timestamp) return true;
    Message message;
    MessageFault fault;
    return parse_message(view.at(pos), size, message, fault) && message.store_timestamp() >= *store_timestamp;
  }
  const EntryHeader header{view.at(pos)};
  return count == 0 ||
         std::any_of(places, places + count, [&](const Place& place) { return place.allows(header, pos); });
}

std::optional<Place> place_before(const SegmentId& id) {
  if (!id.before) return std::nullopt;
  // DLedger 0.4.0 may begin a file with a blank, and no entry is lost with that.
  const auto [index, term, end] = *id.before;
  return id.check_pos ? Place{index, term, end} : Place{index - 1, term, end - kEntryHeaderSize};
}

void Course::begin_behind(const std::optional<Place>& before) {
  if (!before) return;
  known_[0] = *before;
  known_count_ = 1;
  known_run_ = kVoters;
}

void Course::precede(const Course& earlier) {
  Course joined = earlier;
  for (uint64_t i = 0; i < steps_; i++) joined.step(recent_[i % kRing]);
  *this = joined;
}

Expectation Course::at_gap(const SegmentView& view, int64_t pos) {
  Expectation expected;
  if (steps_ == 0 || !view.is_dledger()) {
    for (int i = 0; i < known_count_; i++) expected.add(known_[i]);
    expected.run = known_run_;
    steps_ = 0;
    return expected;
  }
  const int voters = static_cast<int>(std::min<uint64_t>(steps_, kVoters));
  int64_t votes[kVoters], counts[kVoters], term = 0;
  for (int i = 0; i < voters; i++) {
    const EntryHeader header{view.at(recent_[(steps_ - 1 - static_cast<uint64_t>(i)) % kRing])};
    votes[i] = header.index() > INT64_MAX - i ? INT64_MAX : header.index() + i;
    term = i == 0 ? header.term() : std::min(term, header.term());
  }
  // One entry alone proves little: neither its term, nor what was known before it less.
  const bool is_alone = voters == 1;
  if (is_alone) term = -1;
  for (int i = 0; i < voters; i++) counts[i] = std::count(votes, votes + voters, votes[i]);
  expected.run = *std::max_element(counts, counts + voters);
  for (int i = 0; i < voters; i++) {
    const bool is_new = std::find(votes, votes + i, votes[i]) == votes + i;
    if (is_new && counts[i] == expected.run) expected.add({votes[i], term, pos});
  }
  const int own = expected.count;
  for (int i = 0; is_alone && i < known_count_; i++) expected.add(known_[i]);
  std::copy(expected.places, expected.places + own, known_);
  known_count_ = own;
  known_run_ = expected.run;
  steps_ = 0;
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

bool Chain::continues_at(const SegmentView& view, int64_t pos) const {
  if (pos < end) return false;
  if (!view.is_dledger()) return true;
  // A wrong term may be what ended the chain.
  const Place place{EntryHeader{view.at(last)}.index(), EntryHeader{view.at(first)}.term(), end};
  const EntryHeader header{view.at(pos)};
  return place.allows(header, pos) || (pos == end && header.index() - 1 == place.index);
}

Resync::Resync(const SegmentId& id, int64_t start) : start_(start), knows_course_(start == id.base || !id.is_dledger) {
  if (start == id.base) course.begin_behind(place_before(id));
}

Expectation Resync::expected_at(const SegmentView& view, int64_t gap) {
  if (!knows_course_) {
    knows_course_ = true;
    if (!course.has_all_voters()) {
      Resync earlier(view.id(), view.base());
      walk(view, earlier, view.base(), start_, Visitor());
      course.precede(earlier.course);
    }
  }
  return course.at_gap(view, gap);
}

int64_t Resync::next(const SegmentView& view, int64_t gap, int64_t limit) {
  return next(view, gap, limit, expected_at(view, gap));
}

int64_t Resync::next(const SegmentView& view, int64_t gap, int64_t limit, const Expectation& expected) {
  const int64_t hint = hinted(view, gap, expected);
  if (hint >= 0) return hint;
  rest_.length = 0;
  if (!rests_.empty()) rests_.clear();

  Chain best;
  bool has_best = false, is_expected = false;
  int64_t looked = 0, weighed = 0;
  int64_t from = gap + 1, to = std::min(limit, view.file_end());
  for (int64_t pos = view.find(from, to); pos < to; pos = view.find(from, to)) {
    from = pos + 1;
    if (has_best && ++looked > kRivals) break;
    const int64_t size = view.entry_size(pos);
    if (size <= 0) continue;  // the file is being written
    const bool allowed = expected.allows(view, pos, size);
    if (has_best && best.continues_at(view, pos) && (is_expected || expected.run <= 1 || !allowed)) break;
    if (!allowed && (is_expected || expected.strict)) continue;
    if (has_best && is_expected && !best.contradicts(view, pos)) continue;
    const Chain chain = chain_at(view, pos, size);
    weighed_[weighed++ % kRivals] = {chain, allowed};
    if (!allowed && !chain.strong && (chain.length == 1 || expected.run > 1)) {
      // It may lead to what is taken, also where that stands behind the limit: a range sees what a whole scan sees.
      if (!has_best) to = std::max(to, std::min(chain.end + kRivalWindow, view.file_end()));
      continue;
    }
    // An entry that spans others is weighed against them, hence from inside the last one on.
    from = chain.last + 1;
    rest_.length = 0;
    if (has_best && is_expected == allowed && !is_better(chain, best, expected)) {
      looked += chain.length - 1;
      continue;
    }
    best = chain;
    has_best = true;
    is_expected = allowed;
    looked = 0;
    if (best.strong) break;
    to = std::min(best.end + kRivalWindow, view.file_end());
  }
  if (!has_best) return -1;
  // What was too weak by itself, but leads to the best, comes first.
  for (int64_t i = std::max<int64_t>(0, weighed - kRivals); i < weighed; i++) {
    const auto& [chain, allowed] = weighed_[i % kRivals];
    const bool is_near = best.first - chain.end <= kRivalWindow;
    if (is_near && (allowed || !is_expected) && chain.continues_at(view, best.first)) return chain.first;
  }
  return best.first;
}

// What the sizes of a damaged header still tell: where the next entry or the closing blank stands; else -1.
int64_t Resync::hinted(const SegmentView& view, int64_t gap, const Expectation& expected) const {
  int64_t sizes[2];
  const int count = view.sizes_at(gap, sizes);
  const bool agree = count == 1 || (count == 2 && sizes[0] == sizes[1]);
  // Of two sizes one is wrong: then the rest of the header has to speak for the other.
  if (!agree && !names_itself(view, gap)) return -1;
  for (int i = 0; i < (agree ? 1 : count); i++) {
    if (sizes[i] < view.least_size() || sizes[i] > kMaxEntrySize || sizes[i] > view.file_end() - gap) continue;
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
