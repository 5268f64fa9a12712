// Message, texts and CRC of any bytes, each compared with a second implementation.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "crc32.hpp"
#include "input.hpp"
#include "message.hpp"
#include "rows.hpp"
#include "text.hpp"

namespace dledger::fuzz {
namespace {

constexpr double kSeconds = 5;
constexpr size_t kMaxTextSize = 1000;  // the reference is slow

uint32_t crc32_by_bits(const uint8_t* p, size_t n) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < n; i++) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

void check_crc(const uint8_t* p, size_t n) {
  for (size_t skip = 0; skip <= std::min<size_t>(n, 3); skip += 3) {
    const uint32_t expected = crc32_by_bits(p + skip, n - skip);
    check(crc32(p + skip, n - skip) == expected, "crc32 is the CRC by bits");
    check(crc32_portable(p + skip, n - skip) == expected, "crc32_portable is the CRC by bits");
  }
}

// Java's text: valid parts unchanged; an encoded surrogate, the longest prefix of a sequence, and any other byte each
// become one U+FFFD.
std::string java_text(const std::string& bytes) {
  std::string text;
  const auto continues = [&](size_t at) {
    return at < bytes.size() && (static_cast<uint8_t>(bytes[at]) & 0xC0) == 0x80;
  };
  for (size_t at = 0; at < bytes.size();) {
    size_t length = 0;
    for (size_t n = 1; n <= 4 && length == 0; n++) {
      if (at + n <= bytes.size() && is_well_formed(bytes.substr(at, n))) length = n;
    }
    if (length > 0) {
      text += bytes.substr(at, length);
      at += length;
      continue;
    }
    text += "\xEF\xBF\xBD";
    const auto lead = static_cast<uint8_t>(bytes[at]);
    length = 1;
    if (lead == 0xED && continues(at + 1)) {  // only an encoded surrogate remains
      length = static_cast<uint8_t>(bytes[at + 1]) >= 0xA0 ? (continues(at + 2) ? 3 : 2) : 2;
    } else if (lead >= 0xE0 && lead <= 0xF4) {
      // A prefix of a sequence is one that some continuation completes.
      for (size_t n = 2; n <= 3 && at + n <= bytes.size(); n++) {
        const std::string begin = bytes.substr(at, n);
        bool is_beginning = false;
        for (const char* rest : {"\x80", "\x80\x80", "\xA0\x80", "\x90\x80\x80"}) {
          is_beginning = is_beginning || is_well_formed(begin + rest);
        }
        if (!is_beginning) break;
        length = n;
      }
    }
    at += length;
  }
  return text;
}

void check_text(const uint8_t* p, size_t n) {
  const std::string bytes(reinterpret_cast<const char*>(p), n);
  const std::string text = sanitize_utf8(p, n);
  check(is_utf8(p, n) == is_well_formed(bytes), "is_utf8 agrees with the standard's table");
  check(is_well_formed(text), "a sanitised text is UTF-8");
  check(!is_well_formed(bytes) || text == bytes, "a valid text is not changed");
  check(text == java_text(bytes), "a malformed text is as Java decodes it");
}

void check_host(const uint8_t* p, size_t n) {
  for (const size_t length : {size_t{8}, size_t{20}}) {
    if (n < length) return;
    char text[kMaxHostText];
    const std::string host(text, host_text(p, static_cast<int>(length), text));
    const bool is_v6 = length == 20;
    const size_t colon = host.rfind(':');
    check(host.size() <= kMaxHostText && colon != std::string::npos, "a host ends in its port");
    check(host.substr(colon + 1) == std::to_string(load_be32(p + length - 4)), "the port is the last four bytes");
    const std::string address = is_v6 ? host.substr(1, colon - 2) : host.substr(0, colon);
    check(!is_v6 || (host[0] == '[' && host[colon - 1] == ']'), "an IPv6 address is in brackets");
    uint8_t parsed[16];
    check(inet_pton(is_v6 ? AF_INET6 : AF_INET, address.c_str(), parsed) == 1, "an address can be parsed");
    check(std::memcmp(parsed, p, length - 4) == 0, "an address is its bytes");
    // glibc writes some addresses, such as those that begin with 12 zeros, as IPv4.
    const bool is_mixed = is_v6 && std::all_of(p, p + 10, [](uint8_t byte) { return byte == 0; });
    char written[INET6_ADDRSTRLEN];
    if (is_mixed || inet_ntop(is_v6 ? AF_INET6 : AF_INET, p, written, sizeof written) == nullptr) continue;
    check(address == written, "an address is written as in RFC 5952");
  }
}

void check_hex(const uint8_t* p, size_t n) {
  n = std::min<size_t>(n, 28);
  std::vector<char> text(2 * n);
  write_hex(p, static_cast<int>(n), text.data());
  for (size_t i = 0; i < n; i++) {
    check(std::stoi(std::string(&text[2 * i], 2), nullptr, 16) == p[i], "two digits are a byte");
  }
}

void check_message(const uint8_t* p, size_t n) {
  Message message;
  const auto size = static_cast<int64_t>(n);
  if (!parse_message(p, size, message)) {
    const Fact why = message_problem(p, size, 48);
    check(static_cast<bool>(why), "an invalid message has a reason");
    check(sentence(why, "").rfind("expected ", 0) == 0, "a reason says what was expected");
    return;
  }
  check(message.p == p && message.size == size && load_be32(p) == size, "a message has its size");
  const uint8_t* const end = p + n;
  check(message.body >= p + 88 && message.body_length >= 0, "the body is after the fixed fields");
  check(message.body + message.body_length < message.topic, "the topic's length is after the body");
  check(message.topic + message.topic_length + 2 == message.properties, "the properties are after the topic");
  check(message.properties + message.properties_length == end, "the properties end the message");
  check(message.after_store_host() + 16 == message.body, "the hosts have their lengths");
  check(message.has_compressed_body() <= (message.body_length > 0), "an empty body is not compressed");
  const int64_t crc = property_crc(message);
  check(crc >= -1 && crc <= 9999999999, "a property CRC has ten digits");
}

}  // namespace
}  // namespace dledger::fuzz

// The target ignores the first byte. It tells the mutator the sort of the rest.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace dledger;
  fuzz::Random random(seed);
  size = LLVMFuzzerMutate(data, size, max_size);
  if (size > static_cast<size_t>(kMinMessageSize) && !random.one_in(3)) {
    fuzz::store_be32(data + 5, static_cast<uint32_t>(random.one_in(3) ? kMessageMagicV2 : kMessageMagicV1));
    fuzz::mend_message(data + 1, size - 1, 0, random);
  }
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dledger::fuzz;
  if (size < 1 || size > kMaxInputSize) return -1;
  const TimeLimit limit(kSeconds);
  const std::vector<uint8_t> bytes(data + 1, data + size);  // so that ASan finds reads after its end
  check_crc(bytes.data(), bytes.size());
  check_text(bytes.data(), std::min(bytes.size(), kMaxTextSize));
  check_host(bytes.data(), bytes.size());
  check_hex(bytes.data(), bytes.size());
  check_message(bytes.data(), bytes.size());
  return 0;
}
