// The entries of a segment that its witness knows, by position. The same as
// pyspark_dledger/format/scan/chains.py.
#pragma once

#include <cstdint>
#include <optional>

#include "walk.hpp"

namespace dledger {

// An entry of the log in [pos, end). If it is not whole, its header is damaged.
struct KnownFrame {
  int64_t pos, end;
  bool is_whole;
};

// The known entry with the byte at pos. Only for segments with a witness.
std::optional<KnownFrame> known_at(const SegmentView& view, int64_t pos);

// The first known entry that begins after pos, in the bytes that the file has.
std::optional<KnownFrame> known_after(const SegmentView& view, int64_t pos);

// Whether the entry of `size` bytes at pos, which does not follow the one at `last`, is of the log: known, or not
// contradicted by known ones.
bool accepts(const SegmentView& view, int64_t last, int64_t pos, int64_t size);

}  // namespace dledger
