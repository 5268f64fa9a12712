// Text as Java decodes it, and the few formats that columns print.
#pragma once

#include <cstdint>
#include <string>

namespace dledger {

bool is_utf8(const uint8_t* p, size_t n);

// What Java's `new String(bytes, UTF_8)` holds, as UTF-8: malformed parts become U+FFFD.
std::string sanitize_utf8(const uint8_t* p, size_t n);

// `ip:port` or `[ip]:port` (RFC 5952) of a host of `n` bytes: the address (4 or 16 bytes), then the port.
std::string host_text(const uint8_t* p, int n);

}  // namespace dledger
