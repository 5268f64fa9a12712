#include "crc32.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dledger {
namespace {

constexpr int kSlices = 16;
using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) ? 0xEDB88320u : 0u);
    tables[0][byte] = crc;
  }
  for (int slice = 1; slice < kSlices; slice++) {
    for (uint32_t byte = 0; byte < 256; byte++) {
      const uint32_t crc = tables[slice - 1][byte];
      tables[slice][byte] = (crc >> 8) ^ tables[0][crc & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

// Slicing-by-16: the running value `crc` is not inverted here.
uint32_t update_by_slices(uint32_t crc, const uint8_t* p, size_t n) {
  for (; n >= kSlices; n -= kSlices, p += kSlices) {
    uint32_t next = 0;
    for (int i = 0; i < kSlices; i++) {
      const uint8_t byte = i < 4 ? static_cast<uint8_t>(p[i] ^ (crc >> (8 * i))) : p[i];
      next ^= kTables[kSlices - 1 - i][byte];
    }
    crc = next;
  }
  for (; n > 0; n--, p++) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xFF];
  return crc;
}

#if defined(__x86_64__)
// Folding with carry-less multiplication. The constants are powers of x modulo the polynomial: V. Gopal et al., "Fast
// CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009. `n` is a multiple of 16, at
// least 64.
__attribute__((target("pclmul,sse4.1"))) uint32_t update_by_folding(uint32_t crc, const uint8_t* p, size_t n) {
  const auto load = [](const uint8_t* at) __attribute__((target("pclmul,sse4.1"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  };
  const auto fold = [](__m128i x, __m128i k, __m128i next) __attribute__((target("pclmul,sse4.1"))) {
    const __m128i low = _mm_clmulepi64_si128(x, k, 0x00);
    const __m128i high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
  };
  const __m128i by64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
  const __m128i by16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  const __m128i by8 = _mm_set_epi64x(0, 0x0163cd6124);
  const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);

  __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(crc)));
  __m128i b = load(p + 16), c = load(p + 32), d = load(p + 48);
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
    a = fold(a, by64, load(p));
    b = fold(b, by64, load(p + 16));
    c = fold(c, by64, load(p + 32));
    d = fold(d, by64, load(p + 48));
  }
  a = fold(fold(fold(a, by16, b), by16, c), by16, d);
  for (; n >= 16; p += 16, n -= 16) a = fold(a, by16, load(p));

  a = _mm_xor_si128(_mm_clmulepi64_si128(a, by16, 0x10), _mm_srli_si128(a, 8));
  a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_words), by8, 0x00), _mm_srli_si128(a, 4));
  __m128i t = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10);
  t = _mm_clmulepi64_si128(_mm_and_si128(t, low_words), barrett, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(a, t), 1));
}

const bool kFolds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif

}  // namespace

uint32_t crc32_portable(const uint8_t* data, size_t length) { return ~update_by_slices(~0u, data, length); }

uint32_t crc32(const uint8_t* data, size_t length) {
  uint32_t crc = ~0u;
#if defined(__x86_64__)
  if (kFolds && length >= 64) {
    const size_t folded = length & ~size_t{15};
    crc = update_by_folding(crc, data, folded);
    data += folded;
    length -= folded;
  }
#endif
  return ~update_by_slices(crc, data, length);
}

}  // namespace dledger
