// Text as Java decodes it, and the few formats that columns print.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dledger {

// Length of the well-formed sequence at p, or minus the length of the malformed part to replace; p is before end.
int sequence_length(const uint8_t* p, const uint8_t* end);

bool is_utf8(const uint8_t* p, size_t n);

// What Java's `new String(bytes, UTF_8)` holds, as UTF-8: malformed parts become U+FFFD.
std::string sanitize_utf8(const uint8_t* p, size_t n);

constexpr size_t kLongestHost = 64;

// Writes `ip:port` or `[ip]:port` (RFC 5952) of a host of `n` bytes, the address (4 or 16 bytes) and the port, into at
// most kLongestHost characters; returns how many.
size_t host_text(const uint8_t* p, int n, char* text);

// Writes two upper-case digits for each of `n` bytes.
void write_hex(const uint8_t* p, int n, char* text);

}  // namespace dledger
