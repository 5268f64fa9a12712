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

// Slicing-by-16. The running value `crc` is not inverted here.
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
// Carry-less multiplication folds the data into 16 bytes with the same remainder. The constants are powers of x modulo
// the polynomial, reflected, x^(d+32) and x^(d-32) for a fold over d bits: V. Gopal et al., "Fast CRC Computation for
// Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009.
#define FOLD_TARGET "pclmul,sse4.1"
#define WIDE_TARGET "avx512f,avx512vl,vpclmulqdq,pclmul,sse4.1"

__attribute__((target(FOLD_TARGET))) inline __m128i load16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

__attribute__((target(FOLD_TARGET))) inline __m128i fold16(__m128i x, __m128i k, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target(FOLD_TARGET))) inline __m128i by16_constant() {
  return _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
}

// The remainder of 16 bytes, by Barrett's method.
__attribute__((target(FOLD_TARGET))) inline uint32_t reduce(__m128i a) {
  const __m128i by16 = by16_constant();
  const __m128i by8 = _mm_set_epi64x(0, 0x0163cd6124);
  const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
  a = _mm_xor_si128(_mm_clmulepi64_si128(a, by16, 0x10), _mm_srli_si128(a, 8));
  a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_words), by8, 0x00), _mm_srli_si128(a, 4));
  __m128i t = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10);
  t = _mm_clmulepi64_si128(_mm_and_si128(t, low_words), barrett, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(a, t), 1));
}

// Folds the rest, a multiple of 16 bytes, and reduces.
__attribute__((target(FOLD_TARGET))) inline uint32_t finish(__m128i a, const uint8_t* p, size_t n) {
  const __m128i by16 = by16_constant();
  for (; n >= 16; p += 16, n -= 16) a = fold16(a, by16, load16(p));
  return reduce(a);
}

// `n` is a multiple of 16, at least 64.
__attribute__((target(FOLD_TARGET))) uint32_t update_by_folding(uint32_t crc, const uint8_t* p, size_t n) {
  const __m128i by64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), by16 = by16_constant();
  __m128i a = _mm_xor_si128(load16(p), _mm_cvtsi32_si128(static_cast<int>(crc)));
  __m128i b = load16(p + 16), c = load16(p + 32), d = load16(p + 48);
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
    a = fold16(a, by64, load16(p));
    b = fold16(b, by64, load16(p + 16));
    c = fold16(c, by64, load16(p + 32));
    d = fold16(d, by64, load16(p + 48));
  }
  return finish(fold16(fold16(fold16(a, by16, b), by16, c), by16, d), p, n);
}

__attribute__((target(WIDE_TARGET))) inline __m512i load64(const uint8_t* p) { return _mm512_loadu_si512(p); }

__attribute__((target(WIDE_TARGET))) inline __m512i fold64(__m512i x, __m512i k, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(x, k, 0x00), high = _mm512_clmulepi64_epi128(x, k, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // exclusive or of all three
}

__attribute__((target(WIDE_TARGET))) inline __m512i four_of(int64_t high, int64_t low) {
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

// In registers of 64 bytes; `n` is a multiple of 16, at least 256.
__attribute__((target(WIDE_TARGET))) uint32_t update_by_wide_folding(uint32_t crc, const uint8_t* p, size_t n) {
  const __m512i by256 = four_of(0x01322d1430, 0x011542778a);
  const __m512i by64 = four_of(0x01c6e41596, 0x0154442bd4);
  const __m128i by16 = by16_constant();
  const __m512i first = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc)));
  __m512i a = _mm512_xor_si512(load64(p), first), b = load64(p + 64), c = load64(p + 128), d = load64(p + 192);
  for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
    a = fold64(a, by256, load64(p));
    b = fold64(b, by256, load64(p + 64));
    c = fold64(c, by256, load64(p + 128));
    d = fold64(d, by256, load64(p + 192));
  }
  a = fold64(fold64(fold64(a, by64, b), by64, c), by64, d);
  for (; n >= 64; p += 64, n -= 64) a = fold64(a, by64, load64(p));
  alignas(64) __m128i lanes[4];
  _mm512_store_si512(lanes, a);
  __m128i x = lanes[0];
  for (int lane = 1; lane < 4; lane++) x = fold16(x, by16, lanes[lane]);
  return finish(x, p, n);
}

const bool kFolds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
const bool kFoldsWide = kFolds && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("vpclmulqdq");
#endif

}  // namespace

uint32_t crc32_portable(const uint8_t* data, size_t length, uint32_t before) {
  return ~update_by_slices(~before, data, length);
}

uint32_t crc32(const uint8_t* data, size_t length, uint32_t before) {
  uint32_t crc = ~before;
#if defined(__x86_64__)
  if (kFolds && length >= 64) {
    const size_t folded = length & ~size_t{15};
    crc =
        kFoldsWide && length >= 256 ? update_by_wide_folding(crc, data, folded) : update_by_folding(crc, data, folded);
    data += folded;
    length -= folded;
  }
#endif
  return ~update_by_slices(crc, data, length);
}

}  // namespace dledger
