// Checks of entries and messages with an intact structure, in their order.
#pragma once

#include <cstdint>
#include <string>

#include "crc32.hpp"
#include "entry.hpp"
#include "message.hpp"

namespace dledger {

constexpr int64_t kFirstMillisecond = -62135596800000;  // 0001-01-01T00:00:00Z
constexpr int64_t kLastMillisecond = 253402300799999;   // 9999-12-31T23:59:59.999Z

inline bool is_representable(int64_t milliseconds) {
  return milliseconds >= kFirstMillisecond && milliseconds <= kLastMillisecond;
}

inline std::string expected_found(const char* what, const std::string& expected, int64_t found) {
  return std::string("expected ") + what + " " + expected + ", found " + std::to_string(found);
}

inline std::string expected_found(const char* what, int64_t expected, int64_t found) {
  return expected_found(what, std::to_string(expected), found);
}

// The problem of an entry whose body does not match the CRC in its header, or an empty text. 0 there means no CRC.
inline std::string stored_crc_problem(const uint8_t* p, int64_t size) {
  const EntryHeader header{p};
  const int32_t stored = header.body_crc();
  if (stored == 0) return {};
  const auto found = static_cast<int32_t>(crc32(header.body(), static_cast<size_t>(size - kEntryHeaderSize)));
  return found == stored ? std::string() : expected_found("bodyCrc", stored, found);
}

enum class MessageCheck { Offset, Crc, PropertyCrc, Timestamp };

// Calls report(check, text) for each problem of the message at position `at`, until it returns false.
template <typename Report>
void check_message(const Message& message, int64_t at, bool is_dledger, bool verify_crc, Report report) {
  const int64_t offset = message.physical_offset();
  if (offset != at && !report(MessageCheck::Offset, expected_found("physicalOffset", at, offset))) return;
  if (verify_crc && message.body_length > 0) {
    const int64_t stored = message.body_crc();
    const uint32_t found = crc32(message.body, static_cast<size_t>(message.body_length)) & 0x7FFFFFFFu;
    if (found != stored && !report(MessageCheck::Crc, expected_found("message CRC", stored, found))) return;
  }
  const int64_t stored = verify_crc && !is_dledger ? property_crc(message) : -1;
  if (stored >= 0) {
    const uint32_t found = crc32(message.p, static_cast<size_t>(message.size - kPropertyCrcSize)) & 0x7FFFFFFFu;
    if (found != stored && !report(MessageCheck::PropertyCrc, expected_found("property CRC", stored, found))) return;
  }
  const int64_t times[] = {message.born_timestamp(), message.store_timestamp()};
  static const char* const kNames[] = {"bornTimestamp", "storeTimestamp"};
  for (int i = 0; i < 2; i++) {
    if (is_representable(times[i])) continue;
    const std::string name = kNames[i];
    if (!report(MessageCheck::Timestamp,
                "expected " + name + " within years 1 to 9999, found " + std::to_string(times[i]) + " ms")) {
      return;
    }
  }
}

}  // namespace dledger
