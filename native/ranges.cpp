#include "ranges.hpp"

#include <algorithm>

#include "known_frames.hpp"

namespace dledger {
namespace {

constexpr size_t kMaxTermRuns = 1000000;
constexpr int64_t kSearchWindow = 8 * 1024 * 1024;

// The fields of an entry or message that decide whether another one continues it.
struct EntryRef {
  int64_t pos = -1, index = -1, term = -1, store_timestamp = -1;
};

// False if the message at pos has changed since it was found: the file is being written.
bool read_entry(const SegmentView& view, int64_t pos, int64_t size, EntryRef& entry) {
  if (view.is_dledger()) {
    const EntryHeader header{view.at(pos)};
    entry = {pos, header.index(), header.term(), -1};
    return true;
  }
  Message message;
  if (!parse_message(view.bytes(pos, size), size, message)) return false;
  entry = {pos, -1, -1, message.store_timestamp()};
  return true;
}

bool follows(const SegmentView& view, const EntryRef& last, const EntryRef& next) {
  return !view.is_dledger() || (next.index - 1 == last.index && next.term >= last.term);
}

bool is_known_whole(const SegmentView& view, int64_t pos) {
  if (!view.id().witness) return false;
  const auto known = known_at(view, pos);
  return known && known->is_whole;
}

// Whether `entry`, right after `last`, is the log's next one; `before` is the one before `last`, if it has a position.
bool continues(const SegmentView& view, const EntryRef& before, const EntryRef& last, const EntryRef& entry) {
  if (last.pos < 0 || follows(view, last, entry)) return true;
  return is_only_term_damaged(view, before.pos, last.pos, entry.pos) && !is_known_whole(view, last.pos);
}

// What can continue a log after `last`. It is strict, because stale bytes must not become part of the log.
Expectation expected_after(const SegmentView& view, const EntryRef& before, const EntryRef* last, int64_t gap) {
  Expectation expected;
  expected.strict = true;
  expected.agreement = 1;
  if (last != nullptr && view.is_dledger()) {
    int64_t term = before.pos >= 0 ? likely_term(before.term, last->term) : last->term;
    if (term != last->term && is_known_whole(view, last->pos)) term = last->term;
    expected.add({last->index, term, gap});
    expected.shift = shift_of(view, last->pos);
  } else if (last != nullptr) {
    expected.min_store_timestamp = last->store_timestamp;
  } else if (const auto known = end_before(view.id()); known && gap == view.base()) {
    expected.add(*known);
  }
  return expected;
}

}  // namespace

LogEnd log_end(const SegmentView& view, int64_t start, bool search_all) {
  LogEnd end;
  EntryRef before, last;
  Resync resync(view.id(), start);
  int64_t resumed = -1;  // position of the entry that was chosen after a gap
  end.pos = start;
  for (int64_t pos = start; pos < view.file_end();) {
    int64_t size = view.entry_size(pos);
    EntryRef entry;
    if (size > 0 && read_entry(view, pos, size, entry)) {
      if (pos == resumed || continues(view, last.pos == resumed ? EntryRef{} : before, last, entry)) {
        if (end.entries++ == 0) {
          end.first_index = entry.index;
          end.first_term = entry.term;
        }
        view.prefetch(pos + 12 * size);
        before = last;
        last = entry;
        pos += size;
        end.pos = pos;
        continue;
      }
      // The index of the first entry can be wrong.
      if (end.entries == 1 && is_only_index_damaged(view, last.pos, pos, size) && !is_known_whole(view, last.pos)) {
        end.first_index = entry.index;
        end.first_term = entry.term;
        last = entry;
        pos += size;
        end.pos = pos;
        continue;
      }
    }
    const Blank blank = size > 0 ? Blank::None : view.blank_at(pos, size);
    if (blank == Blank::ToEnd) break;
    if (blank == Blank::Leading) {
      pos += size;
      continue;
    }
    const int64_t limit = search_all ? view.file_end() : std::min(view.file_end(), pos + kSearchWindow);
    resumed = resync.next(view, pos, limit, expected_after(view, before, end.entries > 0 ? &last : nullptr, pos));
    if (resumed < 0) break;
    pos = resumed;
  }
  end.last_index = last.index;
  end.last_term = last.term;
  end.last_pos = last.pos;
  end.last_store_timestamp = last.store_timestamp;
  return end;
}

int64_t seek(const SegmentView& view, int64_t start, int64_t end, int64_t index) {
  struct Seek : Visitor {
    const SegmentView& view;
    int64_t index, found;

    Seek(const SegmentView& v, int64_t i, int64_t end) : view(v), index(i), found(end) {}
    bool entry(int64_t pos, int64_t) {
      if (EntryHeader{view.at(pos)}.index() < index) return true;
      found = pos;
      return false;
    }
  };
  Seek visit(view, index, end);
  Resync resync(view.id(), start);
  if (view.is_dledger()) walk(view, resync, start, end, visit);
  return visit.found;
}

std::vector<TermRun> term_runs(const SegmentView& view, int64_t start, int64_t end) {
  struct Runs : Visitor {
    const SegmentView& view;
    std::vector<TermRun> runs;

    explicit Runs(const SegmentView& v) : view(v) {}
    bool entry(int64_t pos, int64_t) {
      const EntryHeader header{view.at(pos)};
      if (runs.empty() || runs.back().term != header.term()) {
        if (runs.size() >= kMaxTermRuns) {
          throw StoreFault(view.id().path + ": expected at most 1000000 changes of term, found more");
        }
        runs.push_back({header.term(), header.index(), pos, 0});
      }
      runs.back().entries++;
      return true;
    }
  };
  Runs visit(view);
  Resync resync(view.id(), start);
  if (view.is_dledger()) walk(view, resync, start, end, visit);
  return std::move(visit.runs);
}

namespace {

std::vector<int64_t> split_by_walking(const SegmentView& view, int64_t start, int64_t end, int64_t target_bytes) {
  struct Cuts : Visitor {
    int64_t known, end, target_bytes;
    std::vector<int64_t> boundaries;

    Cuts(int64_t k, int64_t e, int64_t t) : known(k), end(e), target_bytes(t) {}
    bool entry(int64_t pos, int64_t) {
      if (pos - known < target_bytes) return true;
      if (end - pos < target_bytes / 4) return false;
      boundaries.push_back(pos);
      known = pos;
      return true;
    }
  };
  Cuts visit(start, end, target_bytes);
  Resync resync(view.id(), start);
  walk(view, resync, start, end, visit);
  return std::move(visit.boundaries);
}

// The first entry in [target, end) that every walk from before it is proven to visit, or `end`. The proof is an anchor:
// an entry that no earlier entry or blank extends over, and after which only its own chain of entries is found, for
// longer than any body.
int64_t find_boundary(const SegmentView& view, int64_t target, int64_t end) {
  int64_t reach = view.base(), size = 0, anchor = -1, last = -1, next = -1;
  if (view.blank_at(view.base(), size) == Blank::Leading) reach += size;
  const int64_t from = target - 2 * kSpanWindow;
  for (int64_t pos = view.next_candidate(from, end, true); pos < end; pos = view.next_candidate(pos + 1, end, true)) {
    const int64_t length = view.entry_size(pos);
    if (length == 0) {
      const Blank blank = view.blank_at(pos, size);
      if (blank == Blank::None || size < kMinBlankSize || size > view.base() + view.id().size - pos) continue;
      if (blank == Blank::ToEnd) last = -1;
      reach = std::max(reach, pos + size);
      continue;
    }
    EntryRef before, here;
    const bool is_next = last >= 0 && pos == next && read_entry(view, last, next - last, before) &&
                         read_entry(view, pos, length, here) && follows(view, before, here);
    if (is_next) {
      last = pos;
      if (pos >= std::max(target, anchor + kSpanWindow)) return pos;
    } else {
      const bool is_free = pos >= std::max(target - kSpanWindow, reach);
      anchor = is_free ? pos : -1;
      last = is_free ? pos : -1;
    }
    next = pos + length;
    reach = std::max(reach, next);
  }
  return end;
}

}  // namespace

std::vector<int64_t> split(const SegmentView& view, int64_t start, int64_t end, int64_t target_bytes) {
  if (target_bytes <= 2 * kSpanWindow) return split_by_walking(view, start, end, target_bytes);
  std::vector<int64_t> boundaries;
  for (int64_t known = start; end - known > target_bytes;) {
    known = find_boundary(view, known + target_bytes, end);
    if (known >= end || end - known < target_bytes / 4) break;
    boundaries.push_back(known);
  }
  return boundaries;
}

}  // namespace dledger
