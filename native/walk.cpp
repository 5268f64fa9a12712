#include "walk.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "text.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dledger {
namespace {

constexpr uint64_t kSectorSize = 512;

bool all_zero(const uint8_t* p, int64_t n) { return skip_zeros(p, p + n) == p + n; }

#if defined(__SSE2__)
// Whether find_magic surely finds nothing in the 64 bytes at p; a quick test of all of them.
bool has_no_magic(const uint8_t* p, bool with_blanks) {
  const auto load = [p](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i)); };
  const auto all_equal = [](__m128i a, __m128i b) { return _mm_movemask_epi8(_mm_cmpeq_epi8(a, b)) == 0xFFFF; };
  const auto any_equal = [](__m128i a, __m128i b) { return _mm_movemask_epi8(_mm_cmpeq_epi8(a, b)) != 0; };
  const __m128i b0 = load(0), b1 = load(16), b2 = load(32), b3 = load(48), zero = _mm_setzero_si128();
  if (with_blanks) {
    const __m128i largest = _mm_max_epu8(_mm_max_epu8(b0, b1), _mm_max_epu8(b2, b3));
    if (any_equal(largest, _mm_set1_epi8(-1))) return false;
  }
  const __m128i smallest = _mm_min_epu8(_mm_min_epu8(b0, b1), _mm_min_epu8(b2, b3));
  if (!any_equal(smallest, zero)) return true;
  const __m128i any = _mm_or_si128(_mm_or_si128(b0, b1), _mm_or_si128(b2, b3));
  return all_equal(any, zero) && p[64] == 0 && p[65] == 0 && p[66] == 0;
}
#endif

// The first p in [p, end) where four bytes may begin an entry (0, 0, 0, 1 to 3) or, with_blanks, a blank (four times
// 0xFF). At least four bytes are readable at every p < end.
const uint8_t* find_magic(const uint8_t* p, const uint8_t* end, bool with_blanks) {
#if defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128(), ones = _mm_set1_epi8(-1), three = _mm_set1_epi8(3);
  while (end - p >= 16) {
    if (end - p >= 64 && has_no_magic(p, with_blanks)) {
      p += 64;
      continue;
    }
    for (const uint8_t* const stop = p + std::min<int64_t>(64, (end - p) & ~15); p < stop; p += 16) {
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
  }
#endif
  for (; p < end; p++) {
    const uint32_t magic = load_be32u(p);
    if (magic - 1 <= 2 || (with_blanks && magic == 0xFFFFFFFFu)) return p;
  }
  return end;
}

// The first p in [p, end) where four bytes are the magic of a message or, with_fillers, of a filler. At least four
// bytes are readable at every p < end.
const uint8_t* find_message_magic(const uint8_t* p, const uint8_t* end, bool with_fillers) {
#if defined(__SSE2__)
  const __m128i da = _mm_set1_epi8(static_cast<char>(0xDA)), a3 = _mm_set1_epi8(static_cast<char>(0xA3));
  const __m128i cb = _mm_set1_epi8(static_cast<char>(0xCB)), d4 = _mm_set1_epi8(static_cast<char>(0xD4));
  for (; end - p >= 16; p += 16) {
    const __m128i b0 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i b1 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 1));
    __m128i hit = _mm_and_si128(_mm_cmpeq_epi8(b0, da), _mm_cmpeq_epi8(b1, a3));
    if (with_fillers) hit = _mm_or_si128(hit, _mm_and_si128(_mm_cmpeq_epi8(b0, cb), _mm_cmpeq_epi8(b1, d4)));
    for (int mask = _mm_movemask_epi8(hit); mask != 0; mask &= mask - 1) {
      const uint8_t* const at = p + __builtin_ctz(static_cast<unsigned>(mask));
      const int32_t magic = load_be32(at);
      if (is_message_magic(magic) || (with_fillers && magic == kMessageMagicBlank)) return at;
    }
  }
#endif
  for (; p < end; p++) {
    const int32_t magic = load_be32(p);
    if (is_message_magic(magic) || (with_fillers && magic == kMessageMagicBlank)) return p;
  }
  return end;
}

}  // namespace

const uint8_t* skip_zeros(const uint8_t* from, const uint8_t* to) {
  for (; to - from >= 64; from += 64) {
    uint64_t words[8];
    std::memcpy(words, from, sizeof words);
    if ((words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7]) != 0) break;
  }
  for (uint64_t word = 0; to - from >= 8; from += 8) {
    std::memcpy(&word, from, sizeof word);
    if (word != 0) break;
  }
  while (from < to && *from == 0) from++;
  return from;
}

SegmentView::SegmentView(const SegmentId& id, int64_t readable, MappedFile& file)
    : id_(id), file_end_(id.base + std::min(id.size, readable)), file_(&file) {}

SegmentView::SegmentView(const SegmentId& id, const uint8_t* data, int64_t readable)
    : id_(id),
      file_end_(id.base + std::min(id.size, readable)),
      data_(data),
      near_begin_(id.base),
      near_size_(readable + 1),
      mapped_end_(id.base + readable) {}

const uint8_t* SegmentView::far(int64_t pos, int64_t size) const {
  if (file_ == nullptr) return near(pos);
  const Window window = file_->window(pos - id_.base, size);
  data_ = window.data;
  near_begin_ = id_.base + window.begin;
  near_size_ = window.reach;
  mapped_end_ = near_begin_ + window.size;
  return near(pos);
}

int64_t SegmentView::message_size(int64_t pos) const {
  if (file_end_ - pos < kMinMessageSize) return 0;
  const uint8_t* const p = at(pos);
  if (!is_message_magic(load_be32(p + 4))) return 0;
  const int64_t size = load_be32(p);
  if (size < kMinMessageSize || size > file_end_ - pos) return 0;
  if (id_.check_pos && load_be64(p + kPhysicalOffsetAt) != pos) return 0;
  Message message;
  return parse_message(bytes(pos, size), size, message) ? size : 0;
}

Blank SegmentView::blank_at(int64_t pos, int64_t& size) const {
  if (file_end_ - pos < kMinBlankSize) return Blank::None;
  const uint8_t* const p = at(pos);
  const int32_t magic = load_be32(id_.is_dledger ? p : p + 4);
  if (magic != (id_.is_dledger ? kMagicBlank : kMessageMagicBlank)) return Blank::None;
  size = load_be32(id_.is_dledger ? p + 4 : p);
  const int64_t next = pos + size;
  if (next == file_end_ || next == id_.base + id_.size) return Blank::ToEnd;
  // DLedger 0.4.0 begins a file with a blank of zeros after a snapshot; all others are entries with a damaged magic.
  const int64_t stop = std::min(next, pos + kEntryHeaderSize);
  const bool may_lead = pos == id_.base && size >= kMinBlankSize && next < file_end_;
  const bool is_leading = may_lead && end_of_zeros(pos + kMinBlankSize, stop) == stop && entry_size(next) > 0;
  return is_leading ? Blank::Leading : Blank::Odd;
}

int64_t SegmentView::next_candidate(int64_t from, int64_t end, bool with_blanks) const {
  const int64_t last = std::min(end, file_end_ - kMinBlankSize + 1);
  for (int64_t pos = from; pos < last;) {
    const uint8_t* const p = at(pos);
    const int64_t count = near_end(last) - pos;
    const uint8_t* const hit = id_.is_dledger ? find_magic(p, p + count, with_blanks)
                                              : find_message_magic(p + 4, p + 4 + count, with_blanks) - 4;
    if (hit < p + count) return pos + (hit - p);
    pos += count;
  }
  return end;
}

int64_t SegmentView::find(int64_t from, int64_t end) const {
  for (int64_t pos = next_candidate(from, end, false); pos < end; pos = next_candidate(pos + 1, end, false)) {
    if (entry_size(pos) > 0) return pos;
  }
  return end;
}

Fact SegmentView::reason(int64_t pos) const { return id_.is_dledger ? ledger_reason(pos) : message_reason(pos); }

Fact SegmentView::odd_blank_reason(int64_t pos, int64_t size) const {
  return {ProblemCode::BlankSize, pos, file_end_ - pos, size};
}

int64_t SegmentView::usual_shift() const {
  if (usual_shift_) return *usual_shift_;
  if (id_.before && id_.before->shift) return *(usual_shift_ = id_.before->shift);
  std::map<int64_t, int64_t> counts;
  const int64_t end = std::min(id_.base + kSpanWindow, file_end_);
  for (int64_t pos = find(id_.base + 1, end); pos < end; pos = find(pos + 1, end)) {
    // Unsigned, because a position in a header can be any number.
    counts[static_cast<int64_t>(static_cast<uint64_t>(EntryHeader{at(pos)}.pos()) - static_cast<uint64_t>(pos))]++;
  }
  constexpr size_t kMaxShifts = 16;  // are compared
  std::vector<std::pair<int64_t, int64_t>> most;
  for (const auto& [shift, count] : counts) most.emplace_back(count, shift);
  std::sort(most.rbegin(), most.rend());
  most.resize(std::min(most.size(), kMaxShifts));
  std::tuple<int64_t, int64_t, int64_t> best{0, 0, 0};
  for (const auto& [count, shift] : most) {
    // Two sectors that changed places have shifts on both sides. Only followers have another shift than 0.
    int64_t swapped = -count;
    for (const auto& [others, one] : most) {
      const uint64_t distance = static_cast<uint64_t>(one) - static_cast<uint64_t>(shift);
      const auto opposite = static_cast<int64_t>(static_cast<uint64_t>(shift) - distance);
      const auto is_opposite = [opposite](const auto& other) { return other.second == opposite; };
      if (distance % kSectorSize == 0 && std::any_of(most.begin(), most.end(), is_opposite)) swapped += others;
    }
    best = std::max(best, {swapped, count * (shift == 0 ? 2 : 1), shift});
  }
  usual_shift_ = std::get<2>(best);
  return *usual_shift_;
}

bool SegmentView::is_moved(uint64_t shift, std::optional<uint64_t> expected) const {
  if (id_.check_pos) return false;
  const uint64_t difference = shift - expected.value_or(static_cast<uint64_t>(usual_shift()));
  const auto size = static_cast<uint64_t>(id_.size);
  return difference % kSectorSize == 0 && difference != 0 && (difference <= size || difference + size <= size);
}

bool SegmentView::begins_with_moved(const EntryHeader& header) const {
  if (id_.check_pos) return false;
  const auto shift_at = [this](int64_t pos) {
    return static_cast<uint64_t>(EntryHeader{at(pos)}.pos()) - static_cast<uint64_t>(pos);
  };
  // Other shifts at a file's begin are those of a follower.
  if (shift_at(id_.base) % kSectorSize != 0) return false;
  const int64_t next = id_.base + header.size();
  return is_moved(shift_at(id_.base), {}) && entry_size(next) > 0 && shift_at(next) == shift_at(id_.base) &&
         follows(*this, id_.base, next);
}

Fact SegmentView::order_reason(int64_t last, int64_t pos) const {
  const EntryHeader before{at(last)}, header{at(pos)};
  return {ProblemCode::Order, pos, index_after(before.index(), 1), header.index(), before.term(), header.term()};
}

const KnownEntries& SegmentView::known() const {
  if (!id_.witness->is_asked() && file_ != nullptr) file_->readable();
  return id_.witness->known();
}

Fact SegmentView::ledger_reason(int64_t pos) const {
  const int64_t left = file_end_ - pos;
  if (left < kEntryHeaderSize) return {ProblemCode::NoHeader, pos, 0, left};
  const EntryHeader header{at(pos)};
  if (all_zero(header.p, kEntryHeaderSize)) return {ProblemCode::NoEntry, pos};
  if (!header.is_magic()) return {ProblemCode::EntryMagic, pos, 0, header.magic()};
  const int64_t size = header.size(), body_size = header.body_size();
  if (body_size < 0 || size != kEntryHeaderSize + body_size) return {ProblemCode::EntrySize, pos, body_size, size};
  if (size > left) return {ProblemCode::EntryEnd, pos, size, left};
  if (header.index() < 0 || header.term() < -1) {
    return {ProblemCode::EntryNumbers, pos, 0, header.index(), 0, header.term()};
  }
  // Unsigned, because a position in a header can be any number.
  const auto expected = static_cast<uint64_t>(pos) + static_cast<uint64_t>(id_.check_pos ? 0 : usual_shift());
  return {ProblemCode::EntryPos, pos, static_cast<int64_t>(expected), header.pos()};
}

Fact SegmentView::message_reason(int64_t pos) const {
  const int64_t left = file_end_ - pos;
  if (left < kMinMessageSize) return {ProblemCode::MessageEnd, pos, 0, left};
  const uint8_t* const p = at(pos);
  if (all_zero(p, kMinMessageSize)) return {ProblemCode::NoMessage, pos};
  const int32_t magic = load_be32(p + 4);
  if (!is_message_magic(magic)) return {ProblemCode::MessageMagic, pos, 0, magic};
  const int64_t size = load_be32(p), offset = load_be64(p + kPhysicalOffsetAt);
  if (size < kMinMessageSize || size > left) return {ProblemCode::MessageSize, pos, left, size};
  if (id_.check_pos && offset != pos) return {ProblemCode::MessageElsewhere, pos, pos, offset};
  return message_problem(bytes(pos, size), size, pos);
}

Fact SegmentView::shortage() const {
  const int64_t found = file_end_ - id_.base;
  const int error = file_ != nullptr ? file_->failure() : 0;
  if (error != 0) return {ProblemCode::Unreadable, 0, id_.size, found, 0, error};
  return {ProblemCode::ShortFile, 0, id_.size, found};
}

int SegmentView::sizes_at(int64_t pos, int64_t sizes[2]) const {
  if (file_end_ - pos < min_size()) return 0;
  if (!id_.is_dledger) {
    sizes[0] = load_be32(at(pos));
    return 1;
  }
  const EntryHeader header{at(pos)};
  sizes[0] = header.size();
  sizes[1] = int64_t{kEntryHeaderSize} + header.body_size();
  return 2;
}

bool SegmentView::is_closed_at(int64_t pos) const {
  int64_t size = 0;
  if (pos == id_.base + id_.size) return false;
  if (blank_at(pos, size) == Blank::ToEnd) return true;
  const int64_t end = std::min(pos + kSpanWindow, file_end_);
  return end_of_zeros(pos, end) == end;
}

int64_t SegmentView::end_of_zeros(int64_t from, int64_t end) const {
  int64_t pos = from;
  while (pos < end) {
    if (zeros_begin_ <= pos && pos < zeros_end_) {
      pos = zeros_end_;
      continue;
    }
    const uint8_t* const p = at(pos);
    const int64_t until = near_end(pos < zeros_begin_ ? std::min(end, zeros_begin_) : end);
    pos += skip_zeros(p, p + (until - pos)) - p;
    if (pos < until) break;
  }
  if (pos - from > kLongRun) {
    zeros_begin_ = from;
    zeros_end_ = pos;
  }
  return std::min(pos, end);
}

}  // namespace dledger
