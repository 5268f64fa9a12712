// Resynchronisation: decides at which entry a log continues after corrupt bytes. The rules are those of
// pyspark_dledger/format/scan/resync.py, which explains them.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "known_frames.hpp"

namespace dledger {

constexpr int kRecentEntries = 8;   // before a gap, decide what can follow it
constexpr int kMaxCandidates = 32;  // after the best one, are compared with it

// A possible end of the log: the last entry's index, the minimum term of the next one, and where the gap begins.
struct LogPosition {
  int64_t index, min_term, gap;

  // Whether the entry at pos can be the next one after the gap, in which at least one entry is lost.
  bool allows(const EntryHeader& header, int64_t pos) const {
    // No overflow: indexes are at least 0, `index` is at least -1, and pos is after the gap.
    const int64_t lost = header.index() - 1 - index;
    return lost >= 1 && lost <= (pos - gap) / kEntryHeaderSize && header.term() >= min_term;
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

// Consecutive entries in order.
struct Chain {
  int64_t first = 0, first_size = 0;
  int64_t last = 0, end = 0;
  int64_t length = 0;
  bool strong = false;  // longer than any body
  bool closed = false;  // ends where a log can end

  // Whether the index of the entry at pos proves that it is not of the chain's log.
  bool contradicts(const SegmentView& view, int64_t pos) const;
  // Whether the chain is more likely to be the log than `other`, which begins before it.
  bool outranks(const SegmentView& view, const Chain& other) const;
  // Whether an earlier log left the chain after the end of `other`, whose last terms are later.
  bool is_stale_after(const SegmentView& view, const Chain& other) const;
  bool leads_to(const SegmentView& view, int64_t pos) const;
};

// The position in the header less the entry's own. Followers of DLedger 0.4.0 keep the leader's positions.
uint64_t shift_of(const SegmentView& view, int64_t pos);

// Whether the log continues with the entry at pos after the one at `last`, the first of all, whose index is damaged.
bool is_only_index_damaged(const SegmentView& view, int64_t last, int64_t pos, int64_t size);

// Whether the entry at pos continues the log after the one at `last`, whose term damage has raised. `before` is the one
// before `last`, or -1.
bool is_only_term_damaged(const SegmentView& view, int64_t before, int64_t last, int64_t pos);

// Finds where a walk that began at `start` continues after damage. The walk adds every entry to `history`.
class Resync {
 public:
  Resync(const SegmentId& id, int64_t start);

  WalkHistory history;

  // Where the log continues after the gap, or -1 without such a position before `limit`. Bytes from `limit` on are read
  // only if they decide about entries before it.
  int64_t next(const SegmentView& view, int64_t gap, int64_t limit);

  // Whether an entry on the walk is of the log. Only a known entry can contradict it.
  bool is_of_log(const SegmentView& view, int64_t pos, int64_t size) const {
    const int64_t last = has_witness_ ? history.last() : -1;
    return last < 0 || follows(view, last, pos) || accepts(view, last, pos, size);
  }

  // Starts the history again after a blank at pos: it can stand for any number of entries.
  void pass_blank(const SegmentView& view, int64_t pos) { expected_at(view, pos); }

  // The same where `expected` is known.
  int64_t next(const SegmentView& view, int64_t gap, int64_t limit, const Expectation& expected);

 private:
  Expectation expected_at(const SegmentView& view, int64_t gap);
  int64_t next_known(const SegmentView& view, int64_t gap, int64_t limit, const Expectation& expected);
  // Where the log continues at or after `at`, before the known entry that follows, by the bytes alone; else -1. The
  // bytes from gap to `at` are lost.
  int64_t search(const SegmentView& view, int64_t gap, int64_t at, int64_t limit, const Expectation& expected,
                 const KnownFrame* following);
  bool is_before(const SegmentView& view, int64_t pos, int64_t size, const KnownFrame* following) const;
  int64_t follow_sizes(const SegmentView& view, int64_t gap, const Expectation& expected,
                       const KnownFrame* following) const;
  // Where the best chain of those that begin at `start` or later begins, else -1. With a shift, only of those with it.
  int64_t choose(const SegmentView& view, int64_t start, int64_t limit, const Expectation& expected,
                 const KnownFrame* following, std::optional<uint64_t> shift);
  Chain chain_at(const SegmentView& view, int64_t pos, int64_t size, const KnownFrame* following);
  Chain walk_chain(const SegmentView& view, int64_t pos, int64_t size, const KnownFrame* following) const;

  int64_t start_;
  bool has_witness_;
  bool is_history_known_;
  // The rest of each walked chain after its first entry: the latest one, and others by the position where they begin.
  Chain rest_;
  std::unordered_map<int64_t, Chain> rests_;
  std::pair<Chain, bool> compared_[kMaxCandidates];  // the last chains, and whether they were expected
};

}  // namespace dledger
