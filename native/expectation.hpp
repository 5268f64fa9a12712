// What can follow a gap in a log, see pyspark_dledger/format/scan/chains.py.
#pragma once

#include <cstdint>
#include <optional>

#include "walk.hpp"

namespace dledger {

constexpr int kRecentEntries = 8;  // before a gap, decide what can follow it

// A possible end of the log: the last entry's index, the minimum term of the next one, and where the gap begins.
struct LogPosition {
  int64_t index, min_term, gap;

  // Whether the entry at pos can be the next one after the gap, in which at least one entry is lost.
  bool allows(const EntryHeader& header, int64_t pos) const {
    return header.index() - 1 > index && has_room_before(header, pos) && header.term() >= min_term;
  }

  // Whether all entries between the position and the entry at pos have room in the gap.
  bool has_room_before(const EntryHeader& header, int64_t pos) const {
    // No overflow: indexes are at least 0, `index` is at least -1, and pos is after the gap.
    return header.index() - 1 - index <= (pos - gap) / kEntryHeaderSize;
  }
};

// Where the log ended before the segment, if that is known.
std::optional<LogPosition> end_before(const SegmentId& id);

// What can follow a gap: an entry that one of the positions allows, or any entry if there are no positions.
struct Expectation {
  LogPosition positions[2 * kRecentEntries];
  int count = 0;
  int64_t agreement = 0;                            // how many of the last entries agree on the positions
  bool strict = false;                              // forbids all other entries
  std::optional<int64_t> min_store_timestamp = {};  // of an old CommitLog's next message
  std::optional<uint64_t> shift = {};               // of the last entry, which the next one probably has too

  void add(const LogPosition& position) { positions[count++] = position; }
  bool allows(const SegmentView& view, int64_t pos, int64_t size) const;
  // Whether all entries before the one at pos have room in the gap, by one of the positions.
  bool has_room_before(const SegmentView& view, int64_t pos) const;
};

// The last positions that a walk passed without a gap. Their indexes and terms are read at the next gap.
class WalkHistory {
 public:
  void add(int64_t pos) { recent_[entries_++ % kRing] = pos; }
  void remove_last() { entries_--; }                                                    // not twice in a row
  int64_t last() const { return entries_ > 0 ? recent_[(entries_ - 1) % kRing] : -1; }  // since the last gap
  bool is_full() const { return entries_ >= kRecentEntries; }
  void begin_after(const std::optional<LogPosition>& before);

  // Puts the history of a walk that ended where this one began before it.
  void prepend(const WalkHistory& earlier);

  // What can follow the gap at pos. The history starts again after it.
  Expectation expected_at(const SegmentView& view, int64_t pos);

 private:
  static constexpr uint64_t kRing = 16;

  uint64_t entries_ = 0;
  int64_t recent_[kRing];
  LogPosition known_[kRecentEntries];
  int known_count_ = 0;
  int64_t known_agreement_ = 0;
  std::optional<uint64_t> known_shift_;
};

// The position in the header less the entry's own. Followers of DLedger 0.4.0 keep the leader's positions.
uint64_t shift_of(const SegmentView& view, int64_t pos);

}  // namespace dledger
