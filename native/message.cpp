#include "message.hpp"

#include <cstring>

namespace dledger {
namespace {

bool refuse(Fact* why, ProblemCode code, int64_t size, int64_t found) {
  if (why != nullptr) *why = {code, 0, size, found};
  return false;
}

}  // namespace

bool parse_message(const uint8_t* p, int64_t size, Message& message, Fact* why) {
  if (size < kMinMessageSize) return refuse(why, ProblemCode::ShortMessage, 0, size);
  const int32_t total = load_be32(p);
  if (total != size) return refuse(why, ProblemCode::TotalSize, size, total);
  message.p = p;
  message.size = total;
  message.flags = load_be32(p + 36);

  // Both hosts, the fixed fields and the body length end at 116 at most; the shortest message has 91 bytes.
  int64_t at = message.after_store_host() - p + 4 + 8;
  if (at + 4 > size) return refuse(why, ProblemCode::BodyLength, size, -1);
  message.body_length = load_be32(p + at);
  at += 4;
  if (message.body_length < 0 || at + message.body_length > size) {
    return refuse(why, ProblemCode::BodyLength, size, message.body_length);
  }
  message.body = p + at;
  at += message.body_length;

  const int topic_width = message.magic() == kMessageMagicV2 ? 2 : 1;
  if (at + topic_width > size) return refuse(why, ProblemCode::TopicLength, size, -1);
  message.topic_length = topic_width == 2 ? load_be16(p + at) : p[at];
  at += topic_width;
  if (at + message.topic_length > size) return refuse(why, ProblemCode::TopicLength, size, message.topic_length);
  message.topic = p + at;
  at += message.topic_length;

  if (at + 2 > size) return refuse(why, ProblemCode::PropertiesLength, size, -1);
  message.properties_length = load_be16(p + at);
  at += 2;
  if (at + message.properties_length > size)
    return refuse(why, ProblemCode::PropertiesLength, size, message.properties_length);
  message.properties = p + at;
  at += message.properties_length;
  if (at != size) return refuse(why, ProblemCode::MessageLengths, size, at);
  return true;
}

Fact message_problem(const uint8_t* p, int64_t size, int64_t at) {
  Message message;
  Fact why;
  // Another process may have completed the message meanwhile.
  if (parse_message(p, size, message, &why)) why = {ProblemCode::MessageLengths, 0, size, size};
  why.at = at;
  return why;
}

int64_t property_crc(const Message& message) {
  static const char kName[] = "__CRC32#\x01";
  constexpr int kNameSize = sizeof kName - 1;
  if (message.properties_length < kPropertyCrcSize) return -1;
  const uint8_t* const p = message.properties + message.properties_length - kPropertyCrcSize;
  if (std::memcmp(p, kName, kNameSize) != 0 || p[kPropertyCrcSize - 1] != 0x02) return -1;
  int64_t value = 0;
  for (int i = kPropertyCrcSize - 2; i >= kNameSize; i--) {
    if (p[i] < '0' || p[i] > '9') return -1;
    value = value * 10 + (p[i] - '0');
  }
  return value;
}

}  // namespace dledger
