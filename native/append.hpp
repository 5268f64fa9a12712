// Entries on their way into a log: blocks of bodies, their encoding, and the checks of entries from another node. The
// texts of errors are those of format/encode/entry_encoding.py, and so are the names of arguments.
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

// Bytes of somebody else. They may change while they are read: what is read twice is tested twice.
struct ByteRange {
  const uint8_t* data;
  int64_t size;
};

struct PackedBodies {
  int64_t count;
  ByteRange block;
};

// Where entries stand in a log.
struct LogPlace {
  int64_t index, term, pos;
};

// The bytes that a block of these bodies has. Throws std::invalid_argument.
int64_t block_size(const std::vector<ByteRange>& bodies);
void pack(const std::vector<ByteRange>& bodies, uint8_t* block);

// The bodies of a block. Throws std::invalid_argument where its lengths do not fit it.
std::vector<ByteRange> unpack(const PackedBodies& bodies);

// Bodies that become entries: from the ordinal `first` on `count` of them, the first of which stands at `offset` of the
// block, and the bytes that they have with their headers.
struct Fitting {
  int64_t first, count, offset, size;
};

// As many bodies from the ordinal `first` on as fit into `space` bytes, where each leaves room for a blank. Throws
// std::invalid_argument where the lengths of the block do not fit it.
Fitting find_fitting(const PackedBodies& bodies, int64_t first, int64_t space);

// Fills `size` bytes of data and an index unit for each entry.
void encode(const PackedBodies& bodies, const Fitting& fitting, LogPlace place, uint8_t* data, uint8_t* units);

struct CheckedEntries {
  int64_t count, last_term;
  Buffer units;  // not a vector: its pages are fresh in every call for many entries, and cost more than the check
};

// `expected` is the place of the first entry, with the least term that it may have. Throws std::invalid_argument.
CheckedEntries check_entries(const ByteRange& data, LogPlace expected, int64_t most_term);

// The offset of the first entry with a sector of 512 bytes in which its body is zero throughout. Throws
// std::invalid_argument where the data is not made of whole entries.
std::optional<int64_t> find_torn(const ByteRange& data, int64_t pos);

}  // namespace dledger
