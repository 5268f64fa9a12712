// Which bytes of a segment are an entry, a message, a blank or neither. Everything here looks at the bytes of one
// segment only, never at how a scan was split, so every split of a segment sees the same entries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "entry.hpp"
#include "message.hpp"

namespace dledger {

// The last entry that is known before a segment: its index and term, and the position right behind it.
struct Before {
  int64_t index, term, end;
};

// A segment as a request names it: the file at [base, base + size) of the log's positions.
struct SegmentId {
  std::string path;
  SegmentBytes bytes;
  std::string name;
  int64_t base = 0;
  int64_t size = 0;
  bool is_dledger = true;
  bool check_pos = true;  // false for DLedger 0.4.0, whose followers keep the leader's pos
  std::optional<Before> before;
};

// A blank ends a file where an entry of the largest size did not fit any more, hence a little more than one entry.
constexpr int64_t kSpanWindow = kMaxEntrySize + 4096;

enum class Blank { None, ToEnd, Skips, Odd };

// The readable bytes of a segment. Positions are the log's; none outside [base, file_end) is ever read.
class SegmentView {
 public:
  SegmentView(const SegmentId& id, const uint8_t* data, int64_t readable);

  int64_t base() const { return id_.base; }
  int64_t file_end() const { return file_end_; }
  bool is_dledger() const { return id_.is_dledger; }
  const uint8_t* at(int64_t pos) const { return data_ + (pos - id_.base); }

  // Asks for the bytes of a header that will be read soon; entries are mostly alike in size, so pos is a guess.
  void prefetch(int64_t pos) const {
    const uint8_t* const p = data_ + (pos - id_.base);  // may lie behind the file: a prefetch never faults
    __builtin_prefetch(p);
    // Only where the header reaches into the next line.
    if ((reinterpret_cast<uintptr_t>(p) & 63) > 64 - kEntryHeaderSize) __builtin_prefetch(p + 64);
  }

  // The length of the entry or message at pos, or 0 where none stands there.
  int64_t entry_size(int64_t pos) const { return id_.is_dledger ? ledger_entry_size(pos) : message_size(pos); }

  Blank blank_at(int64_t pos, int64_t& size) const;

  // First pos in [from, end) where an entry or message stands; `end` if there is none. Linear.
  int64_t find(int64_t from, int64_t end) const;

  // What was expected and found at a pos where neither entry nor blank stands.
  std::string reason(int64_t pos) const;
  std::string odd_blank_reason(int64_t pos, int64_t size) const;

  std::string shortage() const;

  // The size of what begins at pos by each field that gives one, whether it makes sense or not; how many there are.
  int sizes_at(int64_t pos, int64_t sizes[2]) const;

  // Whether a log may end at pos: at a blank up to the end, or at more zeros than any body holds. No entry reaches up
  // to the very end of a whole file: there is room for a blank behind it.
  bool is_closed_at(int64_t pos) const;

  // First pos in [from, end) whose bytes may begin an entry or message or, with_blanks, a blank; `end` if there is
  // none.
  int64_t next_candidate(int64_t from, int64_t end, bool with_blanks) const;

  int64_t least_size() const { return id_.is_dledger ? kEntryHeaderSize : kMinMessageSize; }
  const SegmentId& id() const { return id_; }

 private:
  int64_t ledger_entry_size(int64_t pos) const {
    if (file_end_ - pos < kEntryHeaderSize) return 0;
    const EntryHeader header{at(pos)};
    if (!header.is_magic()) return 0;
    const int64_t size = header.size();
    if (size < kEntryHeaderSize || size != int64_t{kEntryHeaderSize} + header.body_size()) return 0;
    if (size > file_end_ - pos || (id_.check_pos && header.pos() != pos)) return 0;
    return header.index() >= 0 && header.term() >= -1 ? size : 0;
  }
  int64_t message_size(int64_t pos) const;
  std::string ledger_reason(int64_t pos) const;
  std::string message_reason(int64_t pos) const;

  SegmentId id_;
  const uint8_t* data_;
  int64_t file_end_;
};

// First pos in [from, to) whose byte is not zero; `to` if there is none.
const uint8_t* skip_zeros(const uint8_t* from, const uint8_t* to);

}  // namespace dledger
