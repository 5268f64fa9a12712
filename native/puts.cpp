#include "puts.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "crc32.hpp"
#include "queue_numbers.hpp"
#include "text.hpp"

namespace dledger {
namespace {

// An inner batch is not known: its messages would need a queue offset each.
constexpr int32_t kKnownFlags = kFlagCompressed | kFlagMultiTags | kFlagTransactionMask | kFlagBornHostV6 |
                                kFlagStoreHostV6 | (kFlagCompressionMask << kFlagCompressionShift);
constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr uint8_t kNoDigit = 64;

std::array<uint8_t, 256> make_values() {
  std::array<uint8_t, 256> values;
  values.fill(kNoDigit);
  for (uint8_t i = 0; i < 64; i++) values[static_cast<uint8_t>(kDigits[i])] = i;
  return values;
}

const std::array<uint8_t, 256> kValues = make_values();

bool is_topic_byte(uint8_t byte) { return kValues[byte] != kNoDigit || byte == '%' || byte == '|'; }

[[noreturn]] void fail(const std::string& text) { throw PutFault(text); }

[[noreturn]] void fail_changed() { fail("the block was changed while it was read"); }

std::string hex(uint32_t value) {
  std::string text;
  do {
    text.insert(text.begin(), "0123456789abcdef"[value & 15]);
    value >>= 4;
  } while (value != 0);
  return "0x" + text;
}

std::string_view view_of(const uint8_t* p, size_t size) { return {reinterpret_cast<const char*>(p), size}; }

Message parse(const ByteRange& body) {
  Message message;
  if (body.size >= kMinMessageSize && !is_message_magic(load_be32(body.data + 4))) {
    fail("expected message magic " + text(kMessageMagicV1) + " or " + text(kMessageMagicV2) + ", found " +
         text(load_be32(body.data + 4)));
  }
  if (!parse_message(body.data, body.size, message)) fail(sentence(message_problem(body.data, body.size, 0), ""));
  return message;
}

// Calls work(i) for each body. A fault gets the body's number, `number_of(i)`.
template <typename Work, typename Number>
void for_each_body(size_t count, Work work, Number number_of) {
  size_t i = 0;
  try {
    for (; i < count; i++) work(i);
  } catch (const PutFault& fault) {
    throw PutFault("message " + std::to_string(number_of(i)) + ": " + fault.text);
  }
}

void check_fields(const Message& message, std::string_view topic) {
  const int32_t magic = topic.size() <= kMaxV1TopicSize ? kMessageMagicV1 : kMessageMagicV2;
  if (message.magic() != magic) {
    fail("expected magic " + text(magic) + " for a topic of " + std::to_string(topic.size()) + " bytes, found " +
         text(message.magic()));
  }
  if (const std::string problem = topic_problem(topic); !problem.empty()) fail(problem);
  if (message.queue_id() < 0) fail("expected a queueId of at least 0, found " + text(message.queue_id()));
  if ((message.flags & ~kKnownFlags) != 0) {
    fail("expected only bits of " + hex(kKnownFlags) + " in sysFlag, found " +
         hex(static_cast<uint32_t>(message.flags)));
  }
  const int64_t stored = message.body_crc();
  const int64_t found = crc32(message.body, static_cast<size_t>(message.body_length)) & 0x7FFFFFFFu;
  if (stored != found) fail("expected message CRC " + text(stored) + ", found " + text(found));
}

// Checks that every property has a name and one value, and stores the identity. Returns false without one.
bool check_properties(std::string_view properties, uint8_t* id) {
  if (properties.size() > kMaxPropertiesSize) {
    fail("expected at most " + text(kMaxPropertiesSize) + " bytes of properties, found " +
         std::to_string(properties.size()));
  }
  if (!is_utf8(reinterpret_cast<const uint8_t*>(properties.data()), properties.size())) {
    fail("expected UTF-8 as properties, found other bytes");
  }
  if (properties.empty()) return false;
  if (properties.back() == kPropertySeparator) properties.remove_suffix(1);
  bool has_id = false;
  for (size_t start = 0, part = 0; start <= properties.size(); part++) {
    const size_t end = std::min(properties.find(kPropertySeparator, start), properties.size());
    const std::string_view pair = properties.substr(start, end - start);
    const size_t middle = pair.find(kNameValueSeparator);
    start = end + 1;
    if (middle == 0 || middle == pair.npos || pair.find(kNameValueSeparator, middle + 1) != pair.npos) {
      fail("expected a name, character 1 and a value as property " + std::to_string(part) + ", found other bytes");
    }
    if (pair.substr(0, middle) != kPropertyId) continue;
    if (has_id) fail(std::string("expected property ") + kPropertyId + " once, found it twice");
    if (!read_id_text(pair.substr(middle + 1), id)) {
      fail(std::string("expected 32 characters of a-zA-Z0-9_- as ") + kPropertyId + ", found other bytes");
    }
    has_id = true;
  }
  return has_id;
}

int64_t stamped_size(const Message& message, const Stamp& stamp) {
  return message.size - message.store_host_length() + static_cast<int64_t>(stamp.host.size());
}

// The same of bytes that may be no message; only the flags are read.
int64_t stamped_size(const ByteRange& body, const Stamp& stamp) {
  if (body.size < kMinMessageSize) return body.size;
  Message message;
  message.size = static_cast<int32_t>(body.size);
  message.flags = load_be32(body.data + 36);
  return stamped_size(message, stamp);
}

template <typename Work>
void for_each_put(const Stamped& plan, Work work) {
  for_each_body(plan.numbers.size(), work, [&](size_t i) { return plan.numbers[i]; });
}

// Throws PutFault for the first put that cannot be stamped.
void check_stamps(const Stamped& plan, const Stamp& stamp) {
  for_each_put(plan, [&](size_t i) {
    const int64_t size = stamped_size(parse(plan.messages[i]), stamp);
    if (size > kMaxBodySize) {
      fail("expected at most " + text(kMaxBodySize) + " bytes with the store's host, found " + text(size));
    }
  });
  if (plan.block_size > kMaxBlockSize) {
    fail("expected at most " + text(kMaxBlockSize) + " bytes of messages with their lengths, found " +
         text(plan.block_size));
  }
}

// Writes what a stamp changes into a message whose first `born` bytes, and its size, are there.
void write_stamp(const Message& message, size_t born, int64_t queue_offset, const Stamp& stamp, uint8_t* to) {
  store_be64(to + 20, static_cast<uint64_t>(queue_offset));
  const int32_t width = stamp.host.size() == 20 ? kFlagStoreHostV6 : 0;
  store_be32(to + 36, static_cast<uint32_t>((message.flags & ~kFlagStoreHostV6) | width));
  store_be64(to + born, static_cast<uint64_t>(stamp.timestamp));
  std::memcpy(to + born + 8, stamp.host.data(), stamp.host.size());
}

size_t born_size(const Message& message) { return static_cast<size_t>(message.store_host() - 8 - message.p); }

// Writes the message as it is stored, without its physicalOffset.
void write_stamped(const Message& message, int64_t queue_offset, const Stamp& stamp, int64_t size, uint8_t* to) {
  const size_t born = born_size(message);
  std::memcpy(to, message.p, born);
  store_be32(to, static_cast<uint32_t>(size));
  write_stamp(message, born, queue_offset, stamp, to);
  const uint8_t* const rest = message.after_store_host();
  std::memcpy(to + born + 8 + stamp.host.size(), rest, static_cast<size_t>(message.p + message.size - rest));
}

bool is_message(const uint8_t* body, int64_t size) {
  return size >= kMinMessageSize && is_message_magic(load_be32(body + 4)) && load_be32(body) == size;
}

}  // namespace

std::string topic_problem(std::string_view topic) {
  if (topic.empty() || topic.size() > kMaxTopicSize) {
    return "expected a topic of 1 to " + text(kMaxTopicSize) + " characters, found " + std::to_string(topic.size());
  }
  for (const char c : topic) {
    const auto byte = static_cast<uint8_t>(c);
    if (!is_topic_byte(byte)) {
      return "expected a topic of %|a-zA-Z0-9_-, found byte " + std::to_string(byte) + " in it";
    }
  }
  return {};
}

void write_id_text(const uint8_t* id, uint8_t* text) {
  for (size_t i = 0; i < kIdSize; i += 3, text += 4) {
    const uint32_t three = uint32_t{id[i]} << 16 | uint32_t{id[i + 1]} << 8 | id[i + 2];
    for (int digit = 0; digit < 4; digit++) text[digit] = static_cast<uint8_t>(kDigits[three >> (18 - 6 * digit) & 63]);
  }
}

bool read_id_text(std::string_view text, uint8_t* id) {
  if (text.size() != kIdTextSize) return false;
  uint32_t seen = 0;
  uint8_t read[kIdSize];
  for (size_t i = 0; i < kIdTextSize / 4; i++) {
    uint32_t three = 0;
    for (size_t digit = 0; digit < 4; digit++) {
      const uint8_t value = kValues[static_cast<uint8_t>(text[4 * i + digit])];
      seen |= value;
      three = three << 6 | (value & 63u);
    }
    for (size_t byte = 0; byte < 3; byte++) read[3 * i + byte] = static_cast<uint8_t>(three >> (16 - 8 * byte));
  }
  if ((seen & kNoDigit) != 0) return false;
  std::memcpy(id, read, kIdSize);
  return true;
}

ReadPuts read_puts(const PackedBodies& bodies) {
  const std::vector<ByteRange> ranges = unpack(bodies);
  ReadPuts puts;
  puts.queue.resize(ranges.size());
  puts.sys_flag.resize(ranges.size());
  puts.has_id.resize(ranges.size());
  puts.ids.resize(ranges.size() * kIdSize);
  QueueNumbers queue_number(puts.queues);
  std::string topic;
  for_each_body(
      ranges.size(),
      [&](size_t i) {
        const Message message = parse(ranges[i]);
        // A copy, because the block may change after the check.
        topic.assign(view_of(message.topic, message.topic_length));
        check_fields(message, topic);
        puts.has_id[i] =
            check_properties(view_of(message.properties, message.properties_length), &puts.ids[i * kIdSize]);
        puts.sys_flag[i] = message.flags;
        puts.queue[i] = queue_number(topic, message.queue_id());
      },
      [](size_t i) { return i; });
  return puts;
}

Stamped plan_stamps(const PackedBodies& bodies, const uint8_t* keep, const int64_t* queue_offsets, const Stamp& stamp) {
  const std::vector<ByteRange> ranges = unpack(bodies);
  Stamped plan;
  bool may_fail = false;
  for (size_t i = 0; i < ranges.size(); i++) {
    if (keep[i] == 0) continue;
    const int64_t size = stamped_size(ranges[i], stamp);
    may_fail = may_fail || ranges[i].size < kMinMessageSize || size > kMaxBodySize;
    plan.numbers.push_back(static_cast<int32_t>(i));
    plan.messages.push_back(ranges[i]);
    plan.queue_offsets.push_back(queue_offsets[i]);
    plan.sizes.push_back(static_cast<int32_t>(size));
    plan.block_size += kLengthSize + size;
  }
  may_fail = may_fail || plan.block_size > kMaxBlockSize;
  if (may_fail) check_stamps(plan, stamp);
  return plan;
}

void stamp_puts(const Stamped& plan, const Stamp& stamp, uint8_t* block) {
  uint8_t* to = block + kLengthSize * static_cast<int64_t>(plan.sizes.size());
  for_each_put(plan, [&](size_t i) {
    const Message message = parse(plan.messages[i]);
    const int64_t size = stamped_size(message, stamp);
    if (size != plan.sizes[i]) fail_changed();
    store_be32(block + kLengthSize * static_cast<int64_t>(i), static_cast<uint32_t>(size));
    write_stamped(message, plan.queue_offsets[i], stamp, size, to);
    to += size;
  });
}

bool keeps_all(const Stamped& plan, const PackedBodies& bodies) {
  if (plan.block_size != bodies.block.size || static_cast<int64_t>(plan.sizes.size()) != bodies.count) return false;
  for (size_t i = 0; i < plan.sizes.size(); i++) {
    if (plan.sizes[i] != plan.messages[i].size) return false;
  }
  return true;
}

void stamp_in_place(const Stamped& plan, const Stamp& stamp) {
  for_each_put(plan, [&](size_t i) {
    const Message message = parse(plan.messages[i]);
    if (stamped_size(message, stamp) != plan.sizes[i]) fail_changed();
    write_stamp(message, born_size(message), plan.queue_offsets[i], stamp, const_cast<uint8_t*>(message.p));
  });
}

void number_puts(const ByteRange& queue, const ByteRange& sys_flag, const uint8_t* keep, std::vector<int64_t>& ends,
                 int64_t* queue_offsets) {
  constexpr int32_t kNotInQueue = 0x4;  // prepared and rolled back
  for (int64_t i = 0; i < queue.size / 4; i++) {
    int32_t number, flags;
    std::memcpy(&number, queue.data + 4 * i, sizeof number);
    std::memcpy(&flags, sys_flag.data + 4 * i, sizeof flags);
    if (number < 0 || static_cast<size_t>(number) >= ends.size()) {
      throw std::invalid_argument("expected a queue below " + std::to_string(ends.size()) + ", found " + text(number));
    }
    const bool is_counted = keep[i] != 0 && (flags & kNotInQueue) == 0;
    queue_offsets[i] = is_counted ? ends[static_cast<size_t>(number)]++ : 0;
  }
}

void locate_puts(const PackedBodies& bodies, int64_t first_index, const std::vector<std::pair<int64_t, int64_t>>& runs,
                 const uint8_t* queue_offsets, uint8_t* locations) {
  auto run = runs.begin();
  int64_t index = first_index, pos = 0;
  for (const ByteRange& body : unpack(bodies)) {
    if (run != runs.end() && run->first == index) pos = (run++)->second;
    int64_t queue_offset;
    std::memcpy(&queue_offset, queue_offsets, sizeof queue_offset);
    store_be64(locations, static_cast<uint64_t>(index++));
    store_be64(locations + 8, static_cast<uint64_t>(pos));
    store_be64(locations + 16, static_cast<uint64_t>(queue_offset));
    pos += kEntryHeaderSize + body.size;
    queue_offsets += sizeof queue_offset;
    locations += kLocationSize;
  }
}

void patch_physical_offsets(uint8_t* data, int64_t size, const ByteRange& units) {
  if (units.size % kIndexUnitSize != 0) {
    throw std::invalid_argument("expected units of 32 bytes, found " + text(units.size) + " bytes");
  }
  int64_t found = 0;
  for (int64_t i = 0; i < units.size / kIndexUnitSize; i++) {
    const int64_t entry_size = load_be32(units.data + i * kIndexUnitSize + 12);
    if (entry_size < kEntryHeaderSize) {
      throw std::invalid_argument("unit " + text(i) + ": expected a size of at least 48, found " + text(entry_size));
    }
    found += entry_size;
  }
  if (found != size) {
    throw std::invalid_argument("expected " + text(found) + " bytes of entries by their units, found " + text(size));
  }
  for (const uint8_t *unit = units.data, *const end = unit + units.size; unit < end; unit += kIndexUnitSize) {
    const int64_t entry_size = load_be32(unit + 12);
    uint8_t* const body = data + kEntryHeaderSize;
    if (is_message(body, entry_size - kEntryHeaderSize)) {
      store_be64(body + kPhysicalOffsetAt, load_be64u(unit + 4) + kEntryHeaderSize);
    }
    data += entry_size;
  }
}

}  // namespace dledger
