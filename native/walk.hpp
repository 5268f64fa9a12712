// Finds entries, messages and blanks in a segment. The result depends on the segment's bytes alone, so every split of a
// scan sees the same entries. Only `known` asks the segment's witness.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "entry.hpp"
#include "known_entries.hpp"
#include "message.hpp"

namespace dledger {

// The last known entry before a segment: its index and term, the position after it, and its header's less its own.
struct PrecedingEntry {
  int64_t index, term, end;
  std::optional<int64_t> shift;
};

// A segment of a request: the file with the log's positions [base, base + size).
struct SegmentId {
  std::string path;
  SegmentBytes bytes;
  std::string name;
  int64_t base = 0;
  int64_t size = 0;
  bool is_dledger = true;
  bool check_pos = true;  // false for DLedger 0.4.0, whose followers keep the leader's pos, and for copied messages
  std::optional<PrecedingEntry> before;
  std::optional<std::pair<int64_t, int64_t>> after;  // index and term of the next segment's first entry
  std::shared_ptr<Witness> witness = nullptr;

  // Where a message at `at` must say that it stands: a copied one, in any place.
  int64_t offset_of(const Message& message, int64_t at) const {
    return is_dledger || check_pos ? at : message.physical_offset();
  }
};

// More bytes than any entry or closing blank has: a chain of this length is in no body, and zeros of this length were
// never written.
constexpr int64_t kSpanWindow = kMaxEntrySize + 4096;

enum class Blank { None, ToEnd, Leading, Odd };

// The readable bytes of a segment. Positions are those of the log. None outside [base, file_end) is read.
class SegmentView {
 public:
  // Of a file, of which some windows are mapped at a time.
  SegmentView(const SegmentId& id, int64_t readable, MappedFile& file);
  // Of bytes in memory.
  SegmentView(const SegmentId& id, const uint8_t* data, int64_t readable);

  int64_t base() const { return id_.base; }
  int64_t file_end() const { return file_end_; }
  bool is_dledger() const { return id_.is_dledger; }

  // The bytes from pos on; kOverlap of them may be read. They stay mapped while a few other positions are read.
  const uint8_t* at(int64_t pos) const { return is_near(pos) ? near(pos) : far(pos, 0); }

  // The `size` bytes at pos.
  const uint8_t* bytes(int64_t pos, int64_t size) const {
    return is_near(pos) && pos + size <= mapped_end_ ? near(pos) : far(pos, size);
  }

  // Where at(pos) is or would be mapped; only for a prefetch, which never faults.
  const uint8_t* near(int64_t pos) const { return data_ + (pos - near_begin_); }

  // Prefetches a header that will be read soon. The position is a guess: entries usually have similar sizes.
  void prefetch(int64_t pos) const {
    const uint8_t* const p = near(pos);
    __builtin_prefetch(p);
    // The second line only if the header extends into it.
    if ((reinterpret_cast<uintptr_t>(p) & 63) > 64 - kEntryHeaderSize) __builtin_prefetch(p + 64);
  }

  // Prefetches all bytes from pos to some KiB after its `size` bytes; `streamed` is the end of the last call.
  void stream(int64_t pos, int64_t size, int64_t& streamed) const {
    const int64_t until = pos + size + kStreamAhead;
    for (streamed = std::max(streamed, pos); streamed < until; streamed += 4 * kCacheLine) {
      const uint8_t* const p = near(streamed);
      __builtin_prefetch(p, 0, 0);
      __builtin_prefetch(p + kCacheLine, 0, 0);
      __builtin_prefetch(p + 2 * kCacheLine, 0, 0);
      __builtin_prefetch(p + 3 * kCacheLine, 0, 0);
    }
  }

  // The size of the entry or message at pos, or 0 without one.
  int64_t entry_size(int64_t pos) const { return id_.is_dledger ? ledger_entry_size(pos) : message_size(pos); }

  Blank blank_at(int64_t pos, int64_t& size) const;

  // The first position in [from, end) of an entry or message, or `end`. Linear.
  int64_t find(int64_t from, int64_t end) const;

  // The problem at a position without entry and blank.
  Fact reason(int64_t pos) const;
  Fact odd_blank_reason(int64_t pos, int64_t size) const;

  // The problem of the entry at pos, which is not of the log and does not follow the one at `last`.
  Fact order_reason(int64_t last, int64_t pos) const;

  // The problem of a file that ends, or cannot be read, before its segment ends.
  Fact shortage() const;

  // The entries that the segment's witness knows. Throws MissingFault if bytes were read that a partial copy does not
  // have: these zeros are no damage.
  const KnownEntries& known() const;

  // The size of the entry or message at pos by each header field that gives one, possible or not. Returns their number.
  int sizes_at(int64_t pos, int64_t sizes[2]) const;

  // Whether a log can end at pos: at a blank up to the end, or at more zeros than a body can have. An entry never ends
  // at the end of a complete file: there is always room for a blank.
  bool is_closed_at(int64_t pos) const;

  // The first byte in [from, end) that is not zero, or `end`. A long run of zeros is read once.
  int64_t end_of_zeros(int64_t from, int64_t end) const;

  // The first position in [from, end) at which an entry, a message or, with_blanks, a blank may begin, or `end`.
  int64_t next_candidate(int64_t from, int64_t end, bool with_blanks) const;

  // For 0.4.0: the shift of the entry before the segment, else that of most entries in its first bytes. Sectors can
  // have been moved.
  int64_t usual_shift() const;

  // Whether an entry with this shift was moved with its sectors: the log's entries have another one, `expected` or the
  // usual one.
  bool is_moved(uint64_t shift, std::optional<uint64_t> expected) const;

  int64_t min_size() const { return id_.is_dledger ? kEntryHeaderSize : kMinMessageSize; }
  const SegmentId& id() const { return id_; }

 private:
  static constexpr int64_t kStreamAhead = 3072;
  static constexpr int64_t kLongRun = 4096;

  int64_t ledger_entry_size(int64_t pos) const {
    if (file_end_ - pos < kEntryHeaderSize) return 0;
    const EntryHeader header{at(pos)};
    if (!header.is_magic()) return 0;
    const int64_t size = header.size();
    if (size < kEntryHeaderSize || size != int64_t{kEntryHeaderSize} + header.body_size()) return 0;
    if (size > file_end_ - pos || header.index() < 0 || header.term() < -1) return 0;
    const bool is_own = header.pos() == pos;
    return is_own || (!id_.check_pos && !(pos == id_.base && begins_with_moved(header))) ? size : 0;
  }
  // Whether the entry at the begin and the next one were moved.
  bool begins_with_moved(const EntryHeader& header) const;
  int64_t message_size(int64_t pos) const;
  bool is_near(int64_t pos) const {
    return static_cast<uint64_t>(pos) - static_cast<uint64_t>(near_begin_) < static_cast<uint64_t>(near_size_);
  }
  const uint8_t* far(int64_t pos, int64_t size) const;
  // `end`, or where the positions of the last window end.
  int64_t near_end(int64_t end) const { return std::min(end, near_begin_ + near_size_); }
  Fact ledger_reason(int64_t pos) const;
  Fact message_reason(int64_t pos) const;

  SegmentId id_;
  int64_t file_end_;
  MappedFile* file_ = nullptr;
  // The window that was used last: its bytes, its first position, how many positions it has, and its end.
  mutable const uint8_t* data_ = nullptr;
  mutable int64_t near_begin_ = 0, near_size_ = 0, mapped_end_ = 0;
  mutable std::optional<int64_t> usual_shift_;
  mutable int64_t zeros_begin_ = 0, zeros_end_ = 0;  // the last long run of zeros
};

// Whether the entry at `next` continues the one at `last`.
inline bool follows(const SegmentView& view, int64_t last, int64_t next) {
  if (!view.is_dledger()) return true;
  const EntryHeader a{view.at(last)}, b{view.at(next)};
  return b.index() - 1 == a.index() && b.term() >= a.term();
}

// The first byte in [from, to) that is not zero, or `to`.
const uint8_t* skip_zeros(const uint8_t* from, const uint8_t* to);

}  // namespace dledger
