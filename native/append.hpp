// Packs bodies, encodes them as entries, and checks entries of another node. The same, with the same error texts, as
// format/encode/entry_encoding.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "columns.hpp"
#include "entry.hpp"

namespace dledger {

constexpr int64_t kMaxBodySize = kMaxEntrySize - kEntryHeaderSize;
constexpr int64_t kMaxBlockSize = int64_t{1} << 30;
constexpr int64_t kLengthSize = 4;  // of a body's length in a block
constexpr int kIndexUnitSize = 32;

// Bytes of the caller, which may change while they are read: values that are read twice are checked twice.
struct ByteRange {
  const uint8_t* data;
  int64_t size;
};

struct PackedBodies {
  int64_t count;
  ByteRange block;
};

// Index, term and position of an entry.
struct EntryPosition {
  int64_t index, term, pos;
};

// The size of a block of these bodies. Throws std::invalid_argument.
int64_t block_size(const std::vector<ByteRange>& bodies);
void pack(const std::vector<ByteRange>& bodies, uint8_t* block);

// The bodies of a block. Throws std::invalid_argument if its lengths do not fit it.
std::vector<ByteRange> unpack(const PackedBodies& bodies);

// The `count` bodies from number `first` on, which begins at `offset` of the block; `size` includes their headers.
struct Fitting {
  int64_t first, count, offset, size;
};

// As many bodies from number `first` on as fit into `space` bytes and leave room for a blank. Throws
// std::invalid_argument if the block's lengths do not fit it.
Fitting find_fitting(const PackedBodies& bodies, int64_t first, int64_t space);

// Fills `size` bytes of data and an index unit for each entry.
void encode(const PackedBodies& bodies, const Fitting& fitting, EntryPosition position, uint8_t* data, uint8_t* units);

struct CheckedEntries {
  int64_t count, last_term;
  Buffer units;             // not a vector: fresh pages in every call would cost more than the check
  int64_t members_at = -1;  // the offset of the first entry with the channel of members entries
};

// `expected` is that of the first entry; its term is the minimum. Throws std::invalid_argument.
CheckedEntries check_entries(const ByteRange& data, EntryPosition expected, int64_t max_term);

// The offset of the first entry with a wrong bodyCrc, or without one and with a sector of 512 bytes in which all bytes
// of its body are zero; without a body, if a sector begins in channel or chainCrc, unless they are right. Throws
// std::invalid_argument for incomplete or invalid entries.
std::optional<int64_t> find_torn(const ByteRange& data, int64_t pos);

// Writes the CRC of each body into its entry's header. Throws std::invalid_argument for incomplete or invalid entries.
void write_body_crcs(uint8_t* data, int64_t size);

// The offset of the first entry whose body does not match its bodyCrc; 0 counts as a CRC only if `needs_crc`. With a
// bodyCrc, channel and chainCrc are checked, too. Throws std::invalid_argument for incomplete or invalid entries.
std::optional<int64_t> find_wrong_body(const ByteRange& data, bool needs_crc);

// The offset of the first entry with a wrong bodyCrc, channel or chainCrc, or without a bodyCrc and with a message that
// cannot be parsed or has a wrong CRC. Throws std::invalid_argument for incomplete or invalid entries.
std::optional<int64_t> find_damaged(const ByteRange& data);

}  // namespace dledger
