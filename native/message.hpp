// The CommitLog message (RocketMQ MessageDecoder), V1 and V2.
#pragma once

#include <cstdint>

#include "bytes.hpp"
#include "facts.hpp"

namespace dledger {

constexpr int32_t kMessageMagicV1 = -626843481;
constexpr int32_t kMessageMagicV2 = -626843477;
constexpr int32_t kMessageMagicBlank = -875286124;
constexpr int64_t kMinMessageSize = 91;
constexpr int kPhysicalOffsetAt = 28;
constexpr int kSysFlagAt = 36;
constexpr uint8_t kPropertySeparator = 0x02;
constexpr uint8_t kNameValueSeparator = 0x01;

// A broker reads these lengths as signed numbers.
constexpr int64_t kMaxV1TopicSize = 127;
constexpr int64_t kMaxV2TopicSize = 32767;
constexpr int64_t kMaxPropertiesSize = 32767;

constexpr int32_t kFlagCompressed = 0x1;
constexpr int32_t kFlagMultiTags = 0x2;
constexpr int32_t kFlagTransactionMask = 0xC;
constexpr int32_t kFlagBornHostV6 = 0x10;
constexpr int32_t kFlagStoreHostV6 = 0x20;
constexpr int kFlagCompressionShift = 8;
constexpr int32_t kFlagCompressionMask = 0x7;

inline bool is_message_magic(int32_t magic) { return magic == kMessageMagicV1 || magic == kMessageMagicV2; }

// A parsed message. All pointers are inside the bytes that were parsed.
struct Message {
  const uint8_t* p = nullptr;
  int32_t size = 0;
  int32_t flags = 0;  // sysFlag as parsed: it decides about the layout, and the file may be written meanwhile
  int32_t body_length = 0;
  uint32_t topic_length = 0;
  uint32_t properties_length = 0;
  const uint8_t* body = nullptr;
  const uint8_t* topic = nullptr;
  const uint8_t* properties = nullptr;

  int32_t magic() const { return load_be32(p + 4); }
  int32_t body_crc() const { return load_be32(p + 8); }
  int32_t queue_id() const { return load_be32(p + 12); }
  int32_t flag() const { return load_be32(p + 16); }
  int64_t queue_offset() const { return load_be64(p + 20); }
  int64_t physical_offset() const { return load_be64(p + kPhysicalOffsetAt); }
  int32_t sys_flag() const { return flags; }
  int64_t born_timestamp() const { return load_be64(p + 40); }
  const uint8_t* born_host() const { return p + 48; }
  int born_host_length() const { return sys_flag() & kFlagBornHostV6 ? 20 : 8; }
  int64_t store_timestamp() const { return load_be64(born_host() + born_host_length()); }
  const uint8_t* store_host() const { return born_host() + born_host_length() + 8; }
  int store_host_length() const { return sys_flag() & kFlagStoreHostV6 ? 20 : 8; }
  const uint8_t* after_store_host() const { return store_host() + store_host_length(); }
  int32_t reconsume_times() const { return load_be32(after_store_host()); }
  int64_t prepared_transaction_offset() const { return load_be64(after_store_host() + 4); }
  bool has_compressed_body() const { return (sys_flag() & kFlagCompressed) != 0 && body_length > 0; }
  int32_t compression_type() const { return (sys_flag() >> kFlagCompressionShift) & kFlagCompressionMask; }
};

// Parses exactly `size` bytes at p. Returns false if the lengths do not add up; `why` has then the length that does not
// fit and its value (-1: the field itself does not fit), and no position.
bool parse_message(const uint8_t* p, int64_t size, Message& message, Fact* why = nullptr);

// Why the bytes at position `at` of the log are not a message.
Fact message_problem(const uint8_t* p, int64_t size, int64_t at);

// The CRC in a trailing `__CRC32#` property, or -1 without one.
int64_t property_crc(const Message& message);

constexpr int kPropertyCrcSize = 20;

}  // namespace dledger
