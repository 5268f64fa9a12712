// Resynchronisation: decides at which entry a log continues after corrupt bytes. The rules are those of
// pyspark_dledger/format/scan/resync.py, which explains them.
#pragma once

#include <cstdint>
#include <optional>

#include "expectation.hpp"
#include "known_frames.hpp"
#include "lookahead.hpp"

namespace dledger {

// Whether the log continues with the entry at pos after the one at `last`, the first of all, whose index is damaged.
bool is_only_index_damaged(const SegmentView& view, int64_t last, int64_t pos, int64_t size);

// Whether the entry at pos continues the log after the one at `last`, whose term damage has raised. `before` is the one
// before `last`, or -1.
bool is_only_term_damaged(const SegmentView& view, int64_t before, int64_t last, int64_t pos);

// The term of the entry at `last`, or that of the entry before it if a flipped bit or other damage has raised it much.
int64_t likely_term(int64_t before, int64_t last);

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

  int64_t start_;
  bool has_witness_;
  bool is_history_known_;
  Lookahead lookahead_;
};

}  // namespace dledger
