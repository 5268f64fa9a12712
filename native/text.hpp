// Text as Java decodes it, and the text formats of columns and problems.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dledger {

// The `readable` bytes from p on, at least `size`, may be read.
struct TextBytes {
  const uint8_t* p = nullptr;
  size_t size = 0, readable = 0;
};

inline std::string text(int64_t value) { return std::to_string(value); }

// The length of the valid UTF-8 sequence at p, or minus the length of the malformed part to replace; p is before end.
int sequence_length(const uint8_t* p, const uint8_t* end);

bool is_utf8(const uint8_t* p, size_t n);

// Java's `new String(bytes, UTF_8)`, as UTF-8: malformed parts become U+FFFD.
std::string sanitize_utf8(const uint8_t* p, size_t n);

constexpr size_t kMaxHostText = 64;

// Writes a host of `n` bytes, the address (4 or 16 bytes) and the port, as `ip:port` or `[ip]:port` (RFC 5952). Returns
// the number of characters, at most kMaxHostText.
size_t host_text(const uint8_t* p, int n, char* text);

// Makes the texts of hosts that often have the same port, or are the same.
class HostText {
 public:
  // As `host_text`. The result is valid until the next call.
  TextBytes text(const uint8_t* p, int n);

 private:
  uint64_t ipv4_ = 0;  // the last one
  size_t size_ = 0, port_size_ = 0;
  char text_[kMaxHostText], port_[16];  // from the colon on
};

// Writes two upper-case digits for each of `n` bytes.
void write_hex(const uint8_t* p, int n, char* text);

}  // namespace dledger
