#include "expectation.hpp"

#include <algorithm>

namespace dledger {

bool Expectation::allows(const SegmentView& view, int64_t pos, int64_t size) const {
  if (!view.is_dledger()) {
    if (!min_store_timestamp) return true;
    Message message;
    return parse_message(view.bytes(pos, size), size, message) && message.store_timestamp() >= *min_store_timestamp;
  }
  const EntryHeader header{view.at(pos)};
  return count == 0 || std::any_of(positions, positions + count,
                                   [&](const LogPosition& position) { return position.allows(header, pos); });
}

bool Expectation::has_room_before(const SegmentView& view, int64_t pos) const {
  if (!view.is_dledger() || count == 0) return true;
  const EntryHeader header{view.at(pos)};
  return std::any_of(positions, positions + count,
                     [&](const LogPosition& position) { return position.has_room_before(header, pos); });
}

std::optional<LogPosition> end_before(const SegmentId& id) {
  if (!id.before) return std::nullopt;
  // DLedger 0.4.0 can begin a file with a blank, in which no entry is lost.
  const auto [index, term, end, shift] = *id.before;
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

uint64_t shift_of(const SegmentView& view, int64_t pos) {
  // Unsigned, because a position in a header can be any number.
  return static_cast<uint64_t>(EntryHeader{view.at(pos)}.pos()) - static_cast<uint64_t>(pos);
}

}  // namespace dledger
