#include "resync.hpp"

#include <algorithm>

#include "gap_search.hpp"
#include "ranges.hpp"

namespace dledger {
namespace {

// A term that a flipped bit raises by so much is damaged, where nothing else decides.
constexpr uint64_t kMinFlippedRise = 16;

bool is_one_bit(int64_t a, int64_t b) {
  const uint64_t bits = static_cast<uint64_t>(a ^ b);
  return bits != 0 && (bits & (bits - 1)) == 0;
}

}  // namespace

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
  return !is_likely_rise(next.term(), raised.term()) ||
         (is_flipped && (raised.term() - 1 > next.term() || is_odd_size));
}

int64_t likely_term(int64_t before, int64_t last) {
  // Unsigned, because a term can be INT64_MAX.
  const auto rise = [before](int64_t term) { return static_cast<uint64_t>(term) - static_cast<uint64_t>(before); };
  if (last <= before || rise(last) < kMinFlippedRise) return last;
  if (!is_likely_rise(before, last)) return before;
  // Without one of its bits, the term is that of the entry before, or a little later.
  int64_t likely = last;
  for (uint64_t bit = kMinFlippedRise; bit <= INT64_MAX; bit <<= 1) {
    const auto term = static_cast<int64_t>(static_cast<uint64_t>(last) & ~bit);
    if (term >= before && rise(term) < kMinFlippedRise) likely = std::min(likely, term);
  }
  return likely;
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
  if (!view.id().witness) return GapSearch(view, expected, nullptr, limit, lookahead_).find(gap, gap);
  if (gap >= view.file_end()) return -1;
  const uint8_t* const header = view.at(gap);
  const uint8_t* const header_end = header + std::min<int64_t>(kEntryHeaderSize, view.file_end() - gap);
  // The end of a log, and no damage.
  if (skip_zeros(header, header_end) == header_end && view.is_closed_at(gap) &&
      GapSearch(view, expected, nullptr, limit, lookahead_).find(gap, gap) < 0) {
    return -1;
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
    auto following = known_after(view, at);
    // An index that is too high for the room before it is damaged.
    if (following && following->is_whole) following->is_whole = expected.has_room_before(view, following->pos);
    const KnownFrame* const end = following ? &*following : nullptr;
    const int64_t found = GapSearch(view, expected, end, limit, lookahead_).find(gap, at);
    if (found >= 0 || !following) return found;
    at = following->pos;
  }
  return -1;
}

}  // namespace dledger
