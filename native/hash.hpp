// Hashes of contents and Java's hashes of texts. The same as format/encode/put_rows.py and common/java_text.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dledger {

// The halves of a MurmurHash3_x64_128 with the seed 0.
struct Hash128 {
  uint64_t first, second;

  bool operator==(const Hash128& other) const { return first == other.first && second == other.second; }
  bool is_zero() const { return (first | second) == 0; }
  void store(uint8_t* to) const;  // 16 bytes, both halves little-endian
};

Hash128 murmur128(const uint8_t* data, size_t length);

// The hashes of both halves of the data, cut at a multiple of 16 bytes. A processor computes the two in parallel.
void murmur128_halves(const uint8_t* data, size_t length, Hash128* first, Hash128* second);

// Java's String.hashCode of well-formed UTF-8: of its UTF-16 units.
int32_t java_hash(const uint8_t* text, size_t length);

}  // namespace dledger
