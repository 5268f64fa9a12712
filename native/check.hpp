// Checks of entries and messages with an intact structure, in their order.
#pragma once

#include <cstdint>

#include "crc32.hpp"
#include "entry.hpp"
#include "facts.hpp"
#include "message.hpp"

namespace dledger {

constexpr int64_t kFirstMillisecond = -62135596800000;  // 0001-01-01T00:00:00Z
constexpr int64_t kLastMillisecond = 253402300799999;   // 9999-12-31T23:59:59.999Z

inline bool is_representable(int64_t milliseconds) {
  return milliseconds >= kFirstMillisecond && milliseconds <= kLastMillisecond;
}

// The problem of an entry whose body does not match the CRC in its header, if it has one. 0 there means no CRC.
inline Fact stored_crc_problem(const uint8_t* p, int64_t size) {
  const EntryHeader header{p};
  const int32_t stored = header.body_crc();
  if (stored == 0) return {};
  const auto found = static_cast<int32_t>(crc32(header.body(), static_cast<size_t>(size - kEntryHeaderSize)));
  return found == stored ? Fact{} : Fact{ProblemCode::BodyCrc, 0, stored, found};
}

// Calls report(fact) for each problem of the message at position `at`, until it returns false.
template <typename Report>
void check_message(const Message& message, int64_t at, bool is_dledger, bool verify_crc, Report report) {
  const int64_t offset = message.physical_offset();
  if (offset != at && !report({ProblemCode::MessageOffset, 0, at, offset})) return;
  if (verify_crc && message.body_length > 0) {
    const int64_t stored = message.body_crc();
    const uint32_t found = crc32(message.body, static_cast<size_t>(message.body_length)) & 0x7FFFFFFFu;
    if (found != stored && !report({ProblemCode::MessageCrc, 0, stored, found})) return;
  }
  const int64_t stored = verify_crc && !is_dledger ? property_crc(message) : -1;
  if (stored >= 0) {
    const uint32_t found = crc32(message.p, static_cast<size_t>(message.size - kPropertyCrcSize)) & 0x7FFFFFFFu;
    if (found != stored && !report({ProblemCode::PropertyCrc, 0, stored, found})) return;
  }
  const int64_t born = message.born_timestamp(), stored_at = message.store_timestamp();
  if (!is_representable(born) && !report({ProblemCode::BornTime, 0, 0, born})) return;
  if (!is_representable(stored_at)) report({ProblemCode::StoreTime, 0, 0, stored_at});
}

}  // namespace dledger
