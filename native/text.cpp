#include "text.hpp"

#include <cstring>

#include "bytes.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dledger {
namespace {

// The decimal digits of each byte and, last, their number.
struct ByteDigits {
  uint8_t of[256][4] = {};

  constexpr ByteDigits() {
    for (int byte = 0; byte < 256; byte++) {
      uint8_t count = 0;
      for (int unit = byte < 10 ? 1 : byte < 100 ? 10 : 100; unit > 0; unit /= 10) {
        of[byte][count++] = static_cast<uint8_t>('0' + byte / unit % 10);
      }
      of[byte][3] = count;
    }
  }
};
constexpr ByteDigits kDigits;

bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

}  // namespace

int sequence_length(const uint8_t* p, const uint8_t* end) {
  const uint8_t lead = *p;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const int64_t left = end - p;
  if (left < 2 || !is_continuation(p[1])) return -1;
  if (length == 2) return 2;
  if ((lead == 0xE0 && p[1] < 0xA0) || (lead == 0xF0 && p[1] < 0x90) || (lead == 0xF4 && p[1] > 0x8F)) return -1;
  if (lead == 0xED && p[1] >= 0xA0) {
    // An encoded surrogate: Java replaces all of it by one character.
    return left >= 3 && is_continuation(p[2]) ? -3 : -2;
  }
  if (left < 3 || !is_continuation(p[2])) return -2;
  if (length == 3) return 3;
  return left < 4 || !is_continuation(p[3]) ? -3 : 4;
}

bool is_utf8(const uint8_t* p, size_t n) {
  const uint8_t* const end = p + n;
  while (p < end) {
#if defined(__SSE2__)
    if (end - p >= 16 && _mm_movemask_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))) == 0) {
      p += 16;
      continue;
    }
#endif
    if (end - p >= 8) {
      uint64_t eight;
      std::memcpy(&eight, p, 8);
      if ((eight & 0x8080808080808080ull) == 0) {
        p += 8;
        continue;
      }
    }
    const int length = sequence_length(p, end);
    if (length < 0) return false;
    p += length;
  }
  return true;
}

std::string sanitize_utf8(const uint8_t* p, size_t n) {
  std::string text;
  text.reserve(n + 16);
  for (const uint8_t* const end = p + n; p < end;) {
    const int length = sequence_length(p, end);
    if (length > 0) {
      text.append(reinterpret_cast<const char*>(p), static_cast<size_t>(length));
      p += length;
    } else {
      text += "\xEF\xBF\xBD";
      p -= length;
    }
  }
  return text;
}

namespace {

// Appends to a buffer that is large enough.
struct Writer {
  char* at;

  void put(char c) { *at++ = c; }
  void put_decimal(int32_t value) {
    uint32_t rest = static_cast<uint32_t>(value);
    if (value < 0) {
      put('-');
      rest = 0u - rest;
    }
    char digits[10];
    int n = 0;
    do {
      digits[n++] = static_cast<char>('0' + rest % 10);
      rest /= 10;
    } while (rest != 0);
    while (n > 0) put(digits[--n]);
  }
  void put_hex(uint32_t value) {
    bool any = false;
    for (int shift = 12; shift >= 0; shift -= 4) {
      const uint32_t digit = value >> shift & 0xF;
      any = any || digit != 0 || shift == 0;
      if (any) put("0123456789abcdef"[digit]);
    }
  }
  void put_ipv4(const uint8_t* p) {
    for (int i = 0; i < 4; i++) {
      if (i > 0) put('.');
      std::memcpy(at, kDigits.of[p[i]],
                  3);  // there is room for more than the digits
      at += kDigits.of[p[i]][3];
    }
  }
};

void put_ipv6(Writer& out, const uint8_t* p) {
  uint32_t groups[8];
  for (int i = 0; i < 8; i++) groups[i] = load_be16(p + 2 * i);
  int zeros_at = -1, zeros = 1;  // a single zero group is not shortened
  for (int i = 0; i < 8; i++) {
    int run = 0;
    while (i + run < 8 && groups[i + run] == 0) run++;
    if (run > zeros) {
      zeros_at = i;
      zeros = run;
    }
    i += run;
  }
  for (int i = 0; i < 8; i++) {
    if (i == zeros_at) {
      out.put(':');
      out.put(':');
      i += zeros - 1;
      continue;
    }
    const bool after_zeros = zeros_at >= 0 && i == zeros_at + zeros;
    if (i > 0 && !after_zeros) out.put(':');
    out.put_hex(groups[i]);
  }
}

}  // namespace

size_t host_text(const uint8_t* p, int n, char* text) {
  Writer out{text};
  const int address = n - 4;
  if (address == 4) {
    out.put_ipv4(p);
  } else {
    static const uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
    out.put('[');
    if (std::memcmp(p, kMapped, sizeof kMapped) == 0) {
      for (const char c : {':', ':', 'f', 'f', 'f', 'f', ':'}) out.put(c);
      out.put_ipv4(p + sizeof kMapped);
    } else {
      put_ipv6(out, p);
    }
    out.put(']');
  }
  out.put(':');
  out.put_decimal(load_be32(p + address));
  return static_cast<size_t>(out.at - text);
}

void write_hex(const uint8_t* p, int n, char* text) {
  for (int i = 0; i < n; i++) {
    text[2 * i] = "0123456789ABCDEF"[p[i] >> 4];
    text[2 * i + 1] = "0123456789ABCDEF"[p[i] & 0xF];
  }
}

}  // namespace dledger
