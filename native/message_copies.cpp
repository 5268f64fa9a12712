#include "message_copies.hpp"

#include <cstring>

#include "crc32.hpp"
#include "message.hpp"

namespace dledger {
namespace {

constexpr int kPropertyCrcDigits = 10;

// Writes the digits of a property CRC, the lowest first, into the last bytes of a message.
void store_property_crc(uint8_t* message, int64_t size) {
  const auto checked = static_cast<size_t>(size - kPropertyCrcSize);
  uint32_t value = crc32(message, checked) & 0x7FFFFFFFu;
  uint8_t* const digits = message + size - 1 - kPropertyCrcDigits;
  for (int i = 0; i < kPropertyCrcDigits; i++, value /= 10) digits[i] = static_cast<uint8_t>('0' + value % 10);
}

// Gives the copy of a message another position. No other thread changes the copy.
CopyOutcome move(uint8_t* copy, int64_t size, int64_t position) {
  Message message;
  if (!parse_message(copy, size, message) || !is_message_magic(message.magic())) return CopyOutcome::Changed;
  const bool is_v2 = message.magic() == kMessageMagicV2;
  if (message.topic_length > (is_v2 ? kMaxV2TopicSize : kMaxV1TopicSize)) return CopyOutcome::LongTopic;
  if (message.properties_length > kMaxPropertiesSize) return CopyOutcome::LongProperties;
  if (message.physical_offset() != position) {
    store_be64(copy + kPhysicalOffsetAt, static_cast<uint64_t>(position));
    if (property_crc(message) >= 0) store_property_crc(copy, size);
  }
  return is_v2 ? CopyOutcome::V2 : CopyOutcome::V1;
}

}  // namespace

CopiedMessages copy_messages(const SegmentView& view, const int64_t* starts, const int64_t* sizes, int64_t count,
                             int64_t position, uint8_t* into) {
  CopiedMessages copied;
  copied.outcomes.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; i++) {
    const int64_t start = starts[i], size = sizes[i];
    CopyOutcome outcome = CopyOutcome::Changed;
    const bool is_inside = start >= view.base() && start <= view.file_end() && size <= view.file_end() - start;
    if (is_inside && size >= kMinMessageSize) {
      uint8_t* const copy = into + copied.size;
      std::memcpy(copy, view.bytes(start, size), static_cast<size_t>(size));
      outcome = move(copy, size, position + copied.size);
      if (outcome <= CopyOutcome::V2) copied.size += size;
    }
    copied.outcomes.push_back(static_cast<uint8_t>(outcome));
  }
  return copied;
}

}  // namespace dledger
