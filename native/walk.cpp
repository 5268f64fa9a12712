#include "walk.hpp"

#include <algorithm>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dledger {
namespace {

constexpr size_t kMaxTermRuns = 1000000;
constexpr int64_t kSearchWindow = 8 * 1024 * 1024;
// A blank ends a file where an entry of the largest size did not fit any more, hence the slack.
constexpr int64_t kSpanWindow = kMaxEntrySize + 4096;

bool all_zero(const uint8_t* p, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    if (p[i] != 0) return false;
  }
  return true;
}

std::string text(int64_t value) { return std::to_string(value); }

// First p in [p, end) where four bytes may begin an entry (0, 0, 0, 1 to 3) or, if asked for, a blank (four times
// 0xFF). At least four bytes are readable at every p < end.
const uint8_t* find_magic(const uint8_t* p, const uint8_t* end, bool with_blanks) {
#if defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128(), ones = _mm_set1_epi8(-1), three = _mm_set1_epi8(3);
  for (; end - p >= 16; p += 16) {
    const auto load = [p](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i)); };
    const __m128i b0 = load(0), b1 = load(1), b2 = load(2), b3 = load(3);
    const __m128i high = _mm_or_si128(_mm_or_si128(b0, b1), b2);
    const __m128i small = _mm_cmpeq_epi8(_mm_min_epu8(b3, three), b3);
    __m128i hit = _mm_andnot_si128(_mm_cmpeq_epi8(b3, zero), _mm_and_si128(_mm_cmpeq_epi8(high, zero), small));
    if (with_blanks) {
      const __m128i all = _mm_and_si128(_mm_and_si128(b0, b1), _mm_and_si128(b2, b3));
      hit = _mm_or_si128(hit, _mm_cmpeq_epi8(all, ones));
    }
    const int mask = _mm_movemask_epi8(hit);
    if (mask != 0) return p + __builtin_ctz(static_cast<unsigned>(mask));
  }
#endif
  for (; p < end; p++) {
    const uint32_t magic = load_be32u(p);
    if (magic - 1 <= 2 || (with_blanks && magic == 0xFFFFFFFFu)) return p;
  }
  return end;
}

}  // namespace

SegmentView::SegmentView(const SegmentId& id, const uint8_t* data, int64_t readable)
    : id_(id), data_(data), file_end_(id.base + std::min(id.size, readable)) {}

int64_t SegmentView::message_size(int64_t pos) const {
  if (file_end_ - pos < kMinMessageSize) return 0;
  const uint8_t* const p = at(pos);
  if (!is_message_magic(load_be32(p + 4))) return 0;
  const int64_t size = load_be32(p);
  if (size < kMinMessageSize || size > file_end_ - pos || load_be64(p + 28) != pos) return 0;
  Message message;
  MessageFault fault;
  return parse_message(p, size, message, fault) ? size : 0;
}

Blank SegmentView::blank_at(int64_t pos, int64_t& size) const {
  if (file_end_ - pos < kMinBlankSize) return Blank::None;
  const uint8_t* const p = at(pos);
  const int32_t magic = load_be32(id_.is_dledger ? p : p + 4);
  if (magic != (id_.is_dledger ? kMagicBlank : kMessageMagicBlank)) return Blank::None;
  size = load_be32(id_.is_dledger ? p + 4 : p);
  const int64_t next = pos + size;
  if (next == file_end_ || next == id_.base + id_.size) return Blank::ToEnd;
  if (size >= kMinBlankSize && next < file_end_ && entry_size(next) > 0) return Blank::Skips;
  return Blank::Odd;
}

// First pos in [from, end) whose bytes may begin an entry or message (with_blanks: or a blank); `end` if there is none.
int64_t SegmentView::next_candidate(int64_t from, int64_t end, bool with_blanks) const {
  const int64_t last = std::min(end, file_end_ - kMinBlankSize + 1);
  if (from >= last) return end;
  if (id_.is_dledger) {
    const uint8_t* const hit = find_magic(at(from), at(last - 1) + 1, with_blanks);
    const int64_t pos = id_.base + (hit - data_);
    return pos < last ? pos : end;
  }
  // The magic stands at byte 4; its first byte is 0xDA, a filler's 0xCB.
  for (int64_t pos = from; pos < last; pos++) {
    const int32_t magic = load_be32(at(pos) + 4);
    if (is_message_magic(magic) || (with_blanks && magic == kMessageMagicBlank)) return pos;
  }
  return end;
}

int64_t SegmentView::find(int64_t from, int64_t end) const {
  for (int64_t pos = next_candidate(from, end, false); pos < end; pos = next_candidate(pos + 1, end, false)) {
    if (entry_size(pos) > 0) return pos;
  }
  return end;
}

std::string SegmentView::reason(int64_t pos) const { return id_.is_dledger ? ledger_reason(pos) : message_reason(pos); }

std::string SegmentView::odd_blank_reason(int64_t pos, int64_t size) const {
  return "expected a blank of " + text(file_end_ - pos) + " bytes at " + text(pos) + ", found " + text(size);
}

std::string SegmentView::ledger_reason(int64_t pos) const {
  const std::string here = " at " + text(pos), left = text(file_end_ - pos) + " bytes up to the end of the file";
  if (file_end_ - pos < kEntryHeaderSize) return "expected an entry header of 48 bytes" + here + ", found " + left;
  const EntryHeader header{at(pos)};
  if (all_zero(header.p, kEntryHeaderSize)) return "expected an entry" + here + ", found zeros";
  if (!header.is_magic()) return "expected magic 1, 2, 3 or -1" + here + ", found " + text(header.magic());
  const int64_t size = header.size(), body_size = header.body_size();
  if (body_size < 0 || size != kEntryHeaderSize + body_size) {
    return "expected size 48 + bodySize " + text(body_size) + here + ", found " + text(size);
  }
  if (size > file_end_ - pos) return "expected an entry of " + text(size) + " bytes" + here + ", found " + left;
  if (header.index() < 0 || header.term() < -1) {
    return "expected index >= 0 and term >= -1" + here + ", found index " + text(header.index()) + " and term " +
           text(header.term());
  }
  return "expected pos " + text(pos) + ", found " + text(header.pos());
}

std::string SegmentView::message_reason(int64_t pos) const {
  const std::string here = " at " + text(pos);
  const int64_t left = file_end_ - pos;
  if (left < kMinMessageSize) {
    return "expected a message of at least 91 bytes" + here + ", found " + text(left) +
           " bytes up to the end of the file";
  }
  const uint8_t* const p = at(pos);
  if (all_zero(p, kMinMessageSize)) return "expected a message" + here + ", found zeros";
  const int32_t magic = load_be32(p + 4);
  if (!is_message_magic(magic)) {
    return "expected message magic -626843481 or -626843477" + here + ", found " + text(magic);
  }
  const int64_t size = load_be32(p);
  if (size < kMinMessageSize || size > left) {
    return "expected a totalSize from 91 to " + text(left) + here + ", found " + text(size);
  }
  if (load_be64(p + 28) != pos) return "expected physicalOffset " + text(pos) + ", found " + text(load_be64(p + 28));
  Message message;
  MessageFault fault;
  parse_message(p, size, message, fault);
  return fault.text(size, pos);
}

std::vector<int64_t> SegmentView::split(int64_t start, int64_t end, int64_t target_bytes) const {
  std::vector<int64_t> boundaries;
  int64_t leading = id_.base, size = 0;
  if (file_end_ > id_.base && blank_at(id_.base, size) == Blank::Skips) leading += size;
  int64_t last = start, target = start + target_bytes;
  while (target < end && end - target >= target_bytes / 4) {
    // An entry start that no entry or blank before it reaches over is visited by every walk.
    int64_t pos = std::max({id_.base, last, target - kSpanWindow}), reach = std::max(pos, leading), found = end;
    for (pos = next_candidate(pos, end, true); pos < end; pos = next_candidate(pos + 1, end, true)) {
      const int64_t length = entry_size(pos);
      if (length > 0) {
        if (pos >= target && pos >= reach) {
          found = pos;
          break;
        }
        reach = std::max(reach, pos + length);
      } else if (blank_at(pos, size) != Blank::None && size >= kMinBlankSize && size <= id_.base + id_.size - pos) {
        reach = std::max(reach, pos + size);
      }
    }
    if (found >= end || end - found < target_bytes / 4) break;
    boundaries.push_back(found);
    last = found;
    target = found + target_bytes;
  }
  return boundaries;
}

namespace {

// The fields of an entry or message that tell whether another one continues it.
struct Place {
  int64_t pos = -1, index = -1, term = -1, store_timestamp = -1;
};

// False where the message at pos is gone since it was found: the file is being written.
bool find_place(const SegmentView& view, int64_t pos, int64_t size, Place& place) {
  if (view.is_dledger()) {
    const EntryHeader header{view.at(pos)};
    place = {pos, header.index(), header.term(), -1};
    return true;
  }
  Message message;
  MessageFault fault;
  if (!parse_message(view.at(pos), size, message, fault)) return false;
  place = {pos, -1, -1, message.store_timestamp()};
  return true;
}

bool follows(const SegmentView& view, const Place& last, const Place& next) {
  return !view.is_dledger() || (next.index == last.index + 1 && next.term >= last.term);
}

// Whether `next` may continue the log behind damage that began at `gap`.
bool follows_gap(const SegmentView& view, const Place& last, const Place& next, int64_t gap) {
  if (!view.is_dledger()) return next.store_timestamp >= last.store_timestamp;
  const int64_t most = (next.pos - gap) / kEntryHeaderSize;
  return next.index > last.index && next.index - last.index - 1 <= most && next.term >= last.term;
}

// First entry in (gap, limit) that may continue `last` (or any, without one); `limit` if there is none.
int64_t find_continuation(const SegmentView& view, const Place* last, int64_t gap, int64_t limit) {
  for (int64_t pos = view.find(gap + 1, limit); pos < limit; pos = view.find(pos + 1, limit)) {
    Place place;
    if (last == nullptr) return pos;
    if (find_place(view, pos, view.entry_size(pos), place) && follows_gap(view, *last, place, gap)) return pos;
  }
  return limit;
}

// Visits the entries of the walk over [start, end); `visit` returns false to stop.
template <typename Visit>
void walk(const SegmentView& view, int64_t start, int64_t end, Visit visit) {
  for (int64_t pos = start; pos < end;) {
    int64_t size = view.entry_size(pos);
    if (size > 0) {
      if (!visit(pos)) return;
      view.prefetch(pos + 12 * size);
      pos += size;
      continue;
    }
    const Blank blank = view.blank_at(pos, size);
    if (blank == Blank::ToEnd) return;
    pos = blank == Blank::Skips ? pos + size : view.find(pos + 1, end);
  }
}

}  // namespace

LogEnd log_end(const SegmentView& view, int64_t start, bool search_all) {
  LogEnd end;
  Place last;
  bool taken = false;  // the entry at pos was chosen behind a gap
  end.pos = start;
  for (int64_t pos = start; pos < view.file_end();) {
    int64_t size = view.entry_size(pos);
    Place place;
    if (size > 0 && find_place(view, pos, size, place)) {
      if (taken || end.entries == 0 || follows(view, last, place)) {
        if (end.entries++ == 0) {
          end.first_index = place.index;
          end.first_term = place.term;
        }
        view.prefetch(pos + 12 * size);
        last = place;
        taken = false;
        pos += size;
        end.pos = pos;
        continue;
      }
    }
    const Blank blank = size > 0 ? Blank::None : view.blank_at(pos, size);
    if (blank == Blank::ToEnd) break;
    if (blank == Blank::Skips) {
      pos += size;
      if (end.entries == 0) end.pos = pos;
      continue;
    }
    const int64_t limit = search_all ? view.file_end() : std::min(view.file_end(), pos + kSearchWindow);
    pos = find_continuation(view, end.entries > 0 ? &last : nullptr, pos, limit);
    if (pos >= limit) break;
    taken = true;
  }
  end.last_index = last.index;
  end.last_term = last.term;
  end.last_pos = last.pos;
  end.last_store_timestamp = last.store_timestamp;
  return end;
}

int64_t seek(const SegmentView& view, int64_t start, int64_t end, int64_t index) {
  int64_t found = end;
  if (!view.is_dledger()) return found;
  walk(view, start, end, [&](int64_t pos) {
    if (EntryHeader{view.at(pos)}.index() < index) return true;
    found = pos;
    return false;
  });
  return found;
}

std::vector<TermRun> term_runs(const SegmentView& view, int64_t start, int64_t end) {
  std::vector<TermRun> runs;
  if (!view.is_dledger()) return runs;
  walk(view, start, end, [&](int64_t pos) {
    const EntryHeader header{view.at(pos)};
    const int64_t term = header.term();
    if (runs.empty() || runs.back().term != term) {
      if (runs.size() >= kMaxTermRuns) throw StoreFault("expected at most 1000000 changes of term, found more");
      runs.push_back({term, header.index(), pos, 0});
    }
    runs.back().entries++;
    return true;
  });
  return runs;
}

}  // namespace dledger
