// Walks over ranges of a segment: the end of its log, the position of an index, runs of terms, split positions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "resync.hpp"

namespace dledger {

// Bytes [pos, end) that are neither blank nor an entry of the log. Most walks do not need the reason.
struct Damage {
  int64_t pos, end;
  bool is_short;      // the file ends before
  bool is_odd_blank;  // a blank of `blank_size` bytes, not of those that are left
  int64_t blank_size;
  int64_t last;  // the entry before, if the one at pos does not follow it; else -1

  Fact reason(const SegmentView& view) const {
    if (is_short) return view.shortage();
    if (last >= 0) return view.order_reason(last, pos);
    return is_odd_blank ? view.odd_blank_reason(pos, blank_size) : view.reason(pos);
  }
};

// A walk calls these in order. Each part begins where the one before it ends.
struct Visitor {
  bool entry(int64_t /*pos*/, int64_t /*size*/) { return true; }  // false ends the walk
  void blank(int64_t /*pos*/, int64_t /*end*/) {}
  void odd_blank(const Damage& /*blank*/) {}  // without an entry after it
  void corrupt(const Damage& /*damage*/) {}
};

// Walks over [start, end); `resync` begins at `start`. Corrupt extents are cut at the end. Returns where the walk ends.
template <typename Visit>
int64_t walk(const SegmentView& view, Resync& resync, int64_t start, int64_t end, Visit&& visit) {
  int64_t pos = start;
  while (pos < end) {
    int64_t size = view.entry_size(pos);
    if (size > 0 && resync.is_of_log(view, pos, size)) {
      resync.history.add(pos);
      view.prefetch(pos + 12 * size);
      if (!visit.entry(pos, size)) return pos;
      pos += size;
      continue;
    }
    const int64_t last = size > 0 ? resync.history.last() : -1;
    const Blank blank = size > 0 ? Blank::None : view.blank_at(pos, size);
    if (blank == Blank::ToEnd || blank == Blank::Leading) {
      visit.blank(pos, pos + size);
      resync.pass_blank(view, pos);
      pos += size;
      continue;
    }
    // An entry right at the end counts: the walk of the next range starts there.
    const int64_t found = resync.next(view, pos, end + 1);
    const bool is_found = found >= 0 && found <= end;
    const bool is_short = !is_found && view.file_end() < end;
    const Damage damage{pos, is_found ? found : end, is_short, blank == Blank::Odd, size, last};
    if (damage.is_odd_blank && !is_found && !is_short) {
      visit.odd_blank(damage);
    } else {
      visit.corrupt(damage);
    }
    pos = damage.end;
  }
  return pos;
}

struct LogEnd {
  int64_t pos = 0, entries = 0;
  int64_t first_index = -1, first_term = -1, last_index = -1, last_term = -1, last_pos = -1, last_store_timestamp = -1;
};

// The end of the log inside the segment. See engine.Engine.log_end in Python.
LogEnd log_end(const SegmentView& view, int64_t start, bool search_all);

// The position of the first DLedger entry in the walk over [start, end) with at least this index, or `end`.
int64_t seek(const SegmentView& view, int64_t start, int64_t end, int64_t index);

struct TermRun {
  int64_t term, index, pos, entries;
};

std::vector<TermRun> term_runs(const SegmentView& view, int64_t start, int64_t end);

// Positions in (start, end), about target_bytes apart, that every walk visits.
std::vector<int64_t> split(const SegmentView& view, int64_t start, int64_t end, int64_t target_bytes);

}  // namespace dledger
