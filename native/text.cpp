#include "text.hpp"

#include <cstdio>
#include <cstring>

#include "bytes.hpp"

namespace dledger {
namespace {

bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// Length of the well-formed sequence at p, or minus the length of the malformed part to replace.
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
    // An encoded surrogate: Java replaces all of it at once.
    return left >= 3 && is_continuation(p[2]) ? -3 : -2;
  }
  if (left < 3 || !is_continuation(p[2])) return -2;
  if (length == 3) return 3;
  return left < 4 || !is_continuation(p[3]) ? -3 : 4;
}

}  // namespace

bool is_utf8(const uint8_t* p, size_t n) {
  const uint8_t* const end = p + n;
  while (p < end) {
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

std::string host_text(const uint8_t* p, int n) {
  char text[80];
  if (n == 8) {
    std::snprintf(text, sizeof text, "%u.%u.%u.%u:%d", p[0], p[1], p[2], p[3], load_be32(p + 4));
    return text;
  }
  static const uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  const int port = load_be32(p + 16);
  if (std::memcmp(p, kMapped, sizeof kMapped) == 0) {
    std::snprintf(text, sizeof text, "[::ffff:%u.%u.%u.%u]:%d", p[12], p[13], p[14], p[15], port);
    return text;
  }
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
  std::string address = "[";
  for (int i = 0; i < 8; i++) {
    if (i == zeros_at) {
      address += "::";
      i += zeros - 1;
      continue;
    }
    if (i > 0 && address.back() != ':') address += ':';
    std::snprintf(text, sizeof text, "%x", groups[i]);
    address += text;
  }
  std::snprintf(text, sizeof text, "]:%d", port);
  return address + text;
}

}  // namespace dledger
