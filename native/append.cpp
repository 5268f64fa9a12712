#include "append.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "check.hpp"
#include "crc32.hpp"
#include "message.hpp"
#include "walk.hpp"

namespace dledger {
namespace {

constexpr int64_t kSector = 512;

// Whether a body begins as a message, but cannot be parsed or does not match its CRC.
bool is_damaged_message(const uint8_t* body, int64_t size) {
  if (size < 8 || !is_message_magic(load_be32(body + 4))) return false;
  Message message;
  if (!parse_message(body, size, message)) return true;
  if (message.body_length == 0) return false;
  const uint32_t found = crc32(message.body, static_cast<size_t>(message.body_length)) & 0x7FFFFFFFu;
  return static_cast<int64_t>(found) != message.body_crc();
}

[[noreturn]] void fail(const std::string& text) { throw std::invalid_argument(text); }

[[noreturn]] void fail_at(int64_t number, const std::string& text) {
  fail("entry " + std::to_string(number) + ": expected " + text);
}

std::string bytes_found(int64_t found) { return ", found " + std::to_string(found) + " bytes"; }

[[noreturn]] void fail_changed() { fail("the block was changed while it was read"); }

void check_length(int64_t number, int64_t length) {
  if (length <= kMaxBodySize) return;
  fail("expected body " + std::to_string(number) + " of at most " + std::to_string(kMaxBodySize) + " bytes, found " +
       std::to_string(length));
}

int64_t length_at(const PackedBodies& bodies, int64_t number) {
  return load_be32u(bodies.block.data + kLengthSize * number);
}

void check_block(const PackedBodies& bodies) {
  const int64_t lengths = kLengthSize * bodies.count;
  if (lengths > bodies.block.size) {
    fail("expected " + std::to_string(lengths) + " bytes of lengths for " + std::to_string(bodies.count) +
         " bodies, found " + std::to_string(bodies.block.size));
  }
  int64_t size = lengths, longest = 0;
  for (int64_t i = 0; i < bodies.count; i++) {
    size += length_at(bodies, i);
    longest = std::max(longest, length_at(bodies, i));
  }
  for (int64_t i = 0; longest > kMaxBodySize && i < bodies.count; i++) check_length(i, length_at(bodies, i));
  if (size != bodies.block.size) {
    fail("expected " + std::to_string(size) + " bytes of bodies with their lengths, found " +
         std::to_string(bodies.block.size));
  }
}

void write_unit(const EntryPosition& position, int64_t size, uint8_t* unit) {
  store_be32(unit, kMagicNormal);
  store_be64(unit + 4, static_cast<uint64_t>(position.pos));
  store_be32(unit + 12, static_cast<uint32_t>(size));
  store_be64(unit + 16, static_cast<uint64_t>(position.index));
  store_be64(unit + 24, static_cast<uint64_t>(position.term));
}

void write_header(const EntryPosition& position, int64_t size, uint8_t* header) {
  store_be32(header, kMagicNormal);
  store_be32(header + 4, static_cast<uint32_t>(size));
  store_be64(header + 8, static_cast<uint64_t>(position.index));
  store_be64(header + 16, static_cast<uint64_t>(position.term));
  store_be64(header + 24, static_cast<uint64_t>(position.pos));
  std::memset(header + 32, 0, 12);  // channel and CRCs
  store_be32(header + 44, static_cast<uint32_t>(size - kEntryHeaderSize));
}

// The size of a complete entry by its header.
int64_t whole_size(const uint8_t* header, int64_t remaining, int64_t number) {
  if (remaining < kEntryHeaderSize) fail_at(number, "a header of 48 bytes" + bytes_found(remaining));
  const EntryHeader entry{header};
  const int64_t size = entry.size(), body_size = entry.body_size();
  if (entry.magic() != kMagicNormal) fail_at(number, "magic 1, found " + std::to_string(entry.magic()));
  if (body_size < 0 || size != kEntryHeaderSize + body_size) {
    fail_at(number, "size 48 + bodySize " + std::to_string(body_size) + ", found " + std::to_string(size));
  }
  if (size > kMaxEntrySize) {
    fail_at(number, "size of at most " + std::to_string(kMaxEntrySize) + ", found " + std::to_string(size));
  }
  if (size > remaining) fail_at(number, std::to_string(size) + " bytes" + bytes_found(remaining));
  return size;
}

void check_value(int64_t number, const char* name, int64_t expected, int64_t found) {
  if (found != expected) {
    fail_at(number, std::string(name) + " " + std::to_string(expected) + ", found " + std::to_string(found));
  }
}

// Whether the bytes of a body, which begins at `pos`, are all zero in one of their sectors.
bool has_zero_sector(const uint8_t* body, int64_t size, int64_t pos) {
  for (int64_t start = 0; start < size;) {
    const int64_t end = std::min(size, start + kSector - (pos + start) % kSector);
    if (skip_zeros(body + start, body + end) == body + end) return true;
    start = end;
  }
  return false;
}

// Whether an entry at `pos` without bodyCrc may lack a sector. Without a body that is the end of its header.
bool looks_torn(const uint8_t* entry, int64_t size, int64_t pos) {
  if (size == kEntryHeaderSize) {
    const EntryHeader header{entry};
    // Channel and chainCrc of a control entry may be lost, wholly or in part.
    const int64_t before_seal = (kSector - (pos + kChannelAt) % kSector) % kSector;
    return header.has_wrong_seal() || (header.control_kind() == 0 && before_seal < kBodyCrcAt - kChannelAt);
  }
  return has_zero_sector(entry + kEntryHeaderSize, size - kEntryHeaderSize, pos + kEntryHeaderSize);
}

}  // namespace

int64_t block_size(const std::vector<ByteRange>& bodies) {
  if (bodies.empty()) fail("expected at least one body, found none");
  int64_t size = kLengthSize * static_cast<int64_t>(bodies.size());
  int64_t number = 0;
  for (const ByteRange& body : bodies) {
    check_length(number++, body.size);
    size += body.size;
  }
  if (size > kMaxBlockSize) {
    fail("expected at most " + std::to_string(kMaxBlockSize) + " bytes of bodies with their lengths, found " +
         std::to_string(size));
  }
  return size;
}

void pack(const std::vector<ByteRange>& bodies, uint8_t* block) {
  uint8_t* length = block;
  uint8_t* to = block + kLengthSize * static_cast<int64_t>(bodies.size());
  for (const ByteRange& body : bodies) {
    store_be32(length, static_cast<uint32_t>(body.size));
    if (body.size > 0) std::memcpy(to, body.data, static_cast<size_t>(body.size));
    length += kLengthSize;
    to += body.size;
  }
}

std::vector<ByteRange> unpack(const PackedBodies& bodies) {
  check_block(bodies);
  std::vector<ByteRange> ranges;
  ranges.reserve(static_cast<size_t>(bodies.count));
  int64_t offset = kLengthSize * bodies.count;
  for (int64_t i = 0; i < bodies.count; i++) {
    const int64_t length = length_at(bodies, i);
    if (length > bodies.block.size - offset) fail_changed();
    ranges.push_back({bodies.block.data + offset, length});
    offset += length;
  }
  return ranges;
}

Fitting find_fitting(const PackedBodies& bodies, int64_t first, int64_t space) {
  check_block(bodies);
  Fitting fitting{first, 0, kLengthSize * bodies.count, 0};
  for (int64_t i = 0; i < first; i++) fitting.offset += length_at(bodies, i);
  for (int64_t i = first; i < bodies.count; i++) {
    const int64_t size = kEntryHeaderSize + length_at(bodies, i);
    if (size + kMinBlankSize > space - fitting.size) break;
    fitting.size += size;
    fitting.count++;
  }
  return fitting;
}

void encode(const PackedBodies& bodies, const Fitting& fitting, EntryPosition position, uint8_t* data, uint8_t* units) {
  uint8_t* const end = data + fitting.size;
  int64_t offset = fitting.offset;
  for (int64_t i = 0; i < fitting.count; i++) {
    const int64_t length = length_at(bodies, fitting.first + i);
    const int64_t size = kEntryHeaderSize + length;
    if (size > end - data || length > bodies.block.size - offset) fail_changed();
    write_header(position, size, data);
    if (length > 0) std::memcpy(data + kEntryHeaderSize, bodies.block.data + offset, static_cast<size_t>(length));
    write_unit(position, size, units);
    data += size;
    units += kIndexUnitSize;
    offset += length;
    position.index++;
    position.pos += size;
  }
  if (data != end) fail_changed();
}

CheckedEntries check_entries(const ByteRange& data, EntryPosition expected, int64_t max_term) {
  if (data.size == 0) fail("expected at least one entry, found none");
  CheckedEntries checked{0, expected.term, {}};
  for (int64_t offset = 0; offset < data.size;) {
    const int64_t size = whole_size(data.data + offset, data.size - offset, checked.count);
    const EntryHeader entry{data.data + offset};
    const int64_t term = entry.term();
    check_value(checked.count, "index", expected.index, entry.index());
    check_value(checked.count, "pos", expected.pos, entry.pos());
    if (term < expected.term || term > max_term) {
      fail_at(checked.count, "term from " + std::to_string(expected.term) + " to " + std::to_string(max_term) +
                                 ", found " + std::to_string(term));
    }
    expected.term = term;
    // Entries of one batch usually have similar sizes.
    if (checked.count == 0) checked.units.reserve(static_cast<size_t>((data.size / size + 1) * kIndexUnitSize));
    write_unit(expected, size, checked.units.extend(kIndexUnitSize));
    if (entry.channel() == kChannelMembers && checked.members_at < 0) checked.members_at = offset;
    offset += size;
    expected.index++;
    expected.pos += size;
    checked.count++;
  }
  checked.last_term = expected.term;
  return checked;
}

std::optional<int64_t> find_torn(const ByteRange& data, int64_t pos) {
  int64_t number = 0;
  for (int64_t offset = 0; offset < data.size;) {
    const int64_t size = whole_size(data.data + offset, data.size - offset, number++);
    const uint8_t* const entry = data.data + offset;
    if (EntryHeader{entry}.body_crc() != 0 ? static_cast<bool>(stored_crc_problem(entry, size))
                                           : looks_torn(entry, size, pos + offset)) {
      return offset;
    }
    offset += size;
  }
  return std::nullopt;
}

void write_body_crcs(uint8_t* data, int64_t size) {
  int64_t number = 0;
  for (uint8_t *entry = data, *const end = data + size; entry < end;) {
    const int64_t entry_size = whole_size(entry, end - entry, number++);
    const auto body_size = static_cast<size_t>(entry_size - kEntryHeaderSize);
    store_be32(entry + kBodyCrcAt, crc32(entry + kEntryHeaderSize, body_size));
    entry += entry_size;
  }
}

std::optional<int64_t> find_wrong_body(const ByteRange& data, bool needs_crc) {
  int64_t number = 0;
  for (int64_t offset = 0; offset < data.size;) {
    const uint8_t* const entry = data.data + offset;
    const int64_t size = whole_size(entry, data.size - offset, number++);
    const EntryHeader header{entry};
    if (needs_crc || header.body_crc() != 0) {
      const auto found = static_cast<int32_t>(crc32(header.body(), static_cast<size_t>(size - kEntryHeaderSize)));
      if (found != header.body_crc()) return offset;
    }
    if (header.has_crc() && header.has_wrong_seal()) return offset;
    offset += size;
  }
  return std::nullopt;
}

std::optional<int64_t> find_damaged(const ByteRange& data) {
  int64_t number = 0;
  for (int64_t offset = 0; offset < data.size;) {
    const uint8_t* const entry = data.data + offset;
    const int64_t size = whole_size(entry, data.size - offset, number++);
    const EntryHeader header{entry};
    if (header.has_crc() ? header.has_wrong_seal() || stored_crc_problem(entry, size)
                         : is_damaged_message(entry + kEntryHeaderSize, size - kEntryHeaderSize)) {
      return offset;
    }
    offset += size;
  }
  return std::nullopt;
}

}  // namespace dledger
