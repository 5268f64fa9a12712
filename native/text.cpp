#include "text.hpp"

#include <algorithm>
#include <cstring>

#include "bytes.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dledger {
namespace {

// The decimal digits of each byte and a dot.
struct ByteDigits {
  struct Text {
    char text[4] = {};
    uint8_t size = 0;
  };
  Text of[256];

  constexpr ByteDigits() {
    for (int byte = 0; byte < 256; byte++) {
      Text& digits = of[byte];
      for (int unit = byte < 10 ? 1 : byte < 100 ? 10 : 100; unit > 0; unit /= 10) {
        digits.text[digits.size++] = static_cast<char>('0' + byte / unit % 10);
      }
      digits.text[digits.size++] = '.';
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
    if (n >= 8) {
      const uint8_t* const eight = std::min(p, end - 8);
      uint64_t bytes;
      std::memcpy(&bytes, eight, sizeof bytes);
      if ((bytes & 0x8080808080808080ull) == 0) {
        p = eight + 8;
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
      const ByteDigits::Text& digits = kDigits.of[p[i]];
      std::memcpy(at, digits.text, sizeof digits.text);  // there is room for more than the digits
      at += digits.size;
    }
    at--;
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

TextBytes HostText::text(const uint8_t* p, int n) {
  uint64_t host = 0;
  std::memcpy(&host, p, sizeof host);
  if (n != sizeof host) {
    size_ = host_text(p, n, text_);
    port_size_ = 0;
  } else if (port_size_ == 0 || std::memcmp(p + 4, reinterpret_cast<const char*>(&ipv4_) + 4, 4) != 0) {
    size_ = host_text(p, n, text_);
    const char* const colon = static_cast<const char*>(std::memchr(text_, ':', size_));
    port_size_ = static_cast<size_t>(text_ + size_ - colon);
    std::memcpy(port_, colon, port_size_);
  } else if (host != ipv4_) {
    Writer out{text_};
    out.put_ipv4(p);
    std::memcpy(out.at, port_, sizeof port_);
    size_ = static_cast<size_t>(out.at - text_) + port_size_;
  }
  ipv4_ = host;
  return {reinterpret_cast<const uint8_t*>(text_), size_, sizeof text_};
}

void write_hex(const uint8_t* p, int n, char* text) {
  int i = 0;
#if defined(__SSE2__)
  for (; i + 8 <= n; i += 8) {
    const __m128i low_bits = _mm_set1_epi8(0xF);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), low_bits), low = _mm_and_si128(bytes, low_bits);
    const __m128i digits = _mm_unpacklo_epi8(high, low);
    const __m128i letters = _mm_and_si128(_mm_cmpgt_epi8(digits, _mm_set1_epi8(9)), _mm_set1_epi8('A' - '0' - 10));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(text + 2 * i),
                     _mm_add_epi8(_mm_add_epi8(digits, _mm_set1_epi8('0')), letters));
  }
#endif
  for (; i < n; i++) {
    text[2 * i] = "0123456789ABCDEF"[p[i] >> 4];
    text[2 * i + 1] = "0123456789ABCDEF"[p[i] & 0xF];
  }
}

}  // namespace dledger
