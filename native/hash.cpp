#include "hash.hpp"

#include "bytes.hpp"

namespace dledger {
namespace {

constexpr uint64_t kFirstFactor = 0x87C37B91114253D5u;
constexpr uint64_t kSecondFactor = 0x4CF5AD432745937Fu;

inline uint64_t rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

inline uint64_t mix_first(uint64_t value) { return rotate(value * kFirstFactor, 31) * kSecondFactor; }

inline uint64_t mix_second(uint64_t value) { return rotate(value * kSecondFactor, 33) * kFirstFactor; }

inline uint64_t finish(uint64_t value) {
  value = (value ^ value >> 33) * 0xFF51AFD7ED558CCDu;
  value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53u;
  return value ^ value >> 33;
}

constexpr size_t kBlock = 16;

// A hash of blocks. Each block has to wait for the one before.
struct Murmur {
  uint64_t first = 0, second = 0;

  void add(const uint8_t* block) {
    first = (rotate(first ^ mix_first(load_le64(block)), 27) + second) * 5 + 0x52DCE729u;
    second = (rotate(second ^ mix_second(load_le64(block + 8)), 31) + first) * 5 + 0x38495AB5u;
  }

  // Adds the rest of the data, less than a block; `length` is that of all data.
  Hash128 end(const uint8_t* rest, size_t length) {
    uint8_t block[kBlock] = {};
    if (length % kBlock > 0) std::memcpy(block, rest, length % kBlock);
    first ^= mix_first(load_le64(block)) ^ length;
    second ^= mix_second(load_le64(block + 8)) ^ length;
    first += second;
    second += first;
    first = finish(first);
    second = finish(second);
    first += second;
    return {first, second + first};
  }
};

// The next unit of a hash: 31 times what was before, plus the unit.
inline uint32_t add_unit(uint32_t hash, uint32_t unit) { return 31 * hash + unit; }

}  // namespace

void Hash128::store(uint8_t* to) const {
  store_le64(to, first);
  store_le64(to + 8, second);
}

Hash128 murmur128(const uint8_t* data, size_t length) {
  Murmur hash;
  size_t at = 0;
  for (; length - at >= kBlock; at += kBlock) hash.add(data + at);
  return hash.end(data + at, length);
}

void murmur128_halves(const uint8_t* data, size_t length, Hash128* first, Hash128* second) {
  const size_t half = length / (2 * kBlock) * kBlock, rest = length - half;
  Murmur one, other;
  size_t at = 0;
  for (; at < half; at += kBlock) {
    one.add(data + at);
    other.add(data + half + at);
  }
  for (; rest - at >= kBlock; at += kBlock) other.add(data + half + at);
  *first = one.end(data + half, half);
  *second = other.end(data + half + at, rest);
}

int32_t java_hash(const uint8_t* text, size_t length) {
  uint32_t hash = 0;
  for (const uint8_t *p = text, *const end = text + length; p < end;) {
    const uint32_t lead = *p++;
    if (lead < 0x80) {
      hash = add_unit(hash, lead);
      continue;
    }
    const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    uint32_t character = lead & (0x3Fu >> more);
    for (int i = 0; i < more && p < end; i++) character = character << 6 | (*p++ & 0x3Fu);
    if (character < 0x10000) {
      hash = add_unit(hash, character);
    } else {
      hash = add_unit(hash, 0xD800 + ((character - 0x10000) >> 10));
      hash = add_unit(hash, 0xDC00 + ((character - 0x10000) & 0x3FF));
    }
  }
  return static_cast<int32_t>(hash);
}

}  // namespace dledger
