// Any bytes as puts of a producer: accepted ones are messages by a second implementation, and can be stamped. And any
// bytes as rows, whose puts are accepted.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "crc32.hpp"
#include "input.hpp"
#include "put_rows.hpp"
#include "rows.hpp"

namespace dledger::fuzz {
namespace {

constexpr double kSeconds = 5;
constexpr size_t kNumbers = 12;  // before the bytes: count, host, which are kept, and the time
constexpr char kTopicBytes[] = "%|-_09azAZ";

struct Numbers {
  int64_t count;
  bool is_v6;
  uint32_t kept;
  int64_t time;

  explicit Numbers(const uint8_t* data)
      : count(data[0] % 32 + 1), is_v6((data[1] & 1) != 0), kept(load_be16(data + 2)), time(load_be64(data + 4)) {}

  bool keeps(size_t i) const { return (kept >> (i % 16) & 1) != 0; }
  std::string host() const {
    return std::string(is_v6 ? "2001:db8:0:0:123port" : "10.0port").substr(0, is_v6 ? 20 : 8);
  }
};

// The fields of a put, or nothing for an invalid one.
struct Put {
  std::string head, born, rest;  // up to sysFlag, from there to storeTimestamp, and after storeHost
  std::string topic, properties;
  int32_t queue_id = 0, flags = 0;
  std::optional<std::string> id;
};

bool is_in(char c, const std::string& set) { return set.find(c) != set.npos; }

bool is_topic(const std::string& topic) {
  const std::string others = "%|_-";
  return !topic.empty() && topic.size() <= 255 && std::all_of(topic.begin(), topic.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || is_in(c, others);
  });
}

// 24 bytes of base64url, bit by bit.
std::optional<std::string> decode(const std::string& text) {
  static const std::string kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  if (text.size() != 32) return std::nullopt;
  std::string bytes(24, '\0');
  for (size_t i = 0; i < 32; i++) {
    const size_t digit = kDigits.find(text[i]);
    if (digit == kDigits.npos) return std::nullopt;
    for (size_t bit = 0; bit < 6; bit++) {
      if ((digit >> (5 - bit) & 1) == 0) continue;
      const size_t at = 6 * i + bit;
      bytes[at / 8] = static_cast<char>(static_cast<uint8_t>(bytes[at / 8]) | 0x80u >> at % 8);
    }
  }
  return bytes;
}

// Whether all properties have a name and a value; stores the identity.
bool read_properties(const std::string& properties, std::optional<std::string>& id) {
  if (properties.size() > 32767 || !is_well_formed(properties)) return false;
  std::string rest = properties;
  if (!rest.empty() && rest.back() != '\2') rest += '\2';
  while (!rest.empty()) {
    const std::string pair = rest.substr(0, rest.find('\2'));
    rest.erase(0, pair.size() + 1);
    if (std::count(pair.begin(), pair.end(), '\1') != 1 || pair[0] == '\1') return false;
    if (pair.rfind("__DLEDGER_ID\1", 0) != 0) continue;
    if (id) return false;
    id = decode(pair.substr(13));
    if (!id) return false;
  }
  return true;
}

std::optional<Put> read_put(const std::string& body) {
  Put put;
  size_t at = 0;
  bool is_whole = true;
  const auto take = [&](size_t size) {
    is_whole = is_whole && body.size() - at >= size;
    const std::string taken = is_whole ? body.substr(at, size) : std::string(std::min<size_t>(size, 8), '\0');
    at += is_whole ? size : 0;
    return taken;
  };
  const auto number = [](const std::string& bytes) {
    uint64_t value = 0;
    for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
    return value;
  };
  put.head = take(36);
  const std::string flags = take(4);
  put.flags = static_cast<int32_t>(number(flags));
  put.born = take(8 + ((put.flags & 0x10) != 0 ? 20 : 8));
  take(8 + ((put.flags & 0x20) != 0 ? 20 : 8));
  const size_t rest = at;
  take(12);
  const uint64_t length = number(take(4));
  if (!is_whole || length > body.size()) return std::nullopt;
  const std::string content = take(length);
  const auto magic = static_cast<uint32_t>(number(put.head.substr(4, 4)));
  put.topic = take(number(take(magic == 0xDAA320ABu ? 2 : 1)));
  put.properties = take(number(take(2)));
  if (!is_whole || at != body.size() || number(put.head.substr(0, 4)) != body.size()) return std::nullopt;
  put.rest = body.substr(rest);
  if (magic != (put.topic.size() > 127 ? 0xDAA320ABu : 0xDAA320A7u) || !is_topic(put.topic)) return std::nullopt;
  put.queue_id = static_cast<int32_t>(number(put.head.substr(12, 4)));
  const uint32_t crc = crc32_portable(reinterpret_cast<const uint8_t*>(content.data()), content.size()) & 0x7FFFFFFFu;
  if (put.queue_id < 0 || (put.flags & ~0x73F) != 0 || number(put.head.substr(8, 4)) != crc) return std::nullopt;
  if (!read_properties(put.properties, put.id)) return std::nullopt;
  return put;
}

std::string big_endian(uint64_t value, int size) {
  std::string bytes;
  for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// The put as it is stored.
std::string stamped(const Put& put, int64_t queue_offset, const Numbers& numbers) {
  const int32_t flags = (put.flags & ~0x20) | (numbers.is_v6 ? 0x20 : 0);
  std::string made = put.head + big_endian(static_cast<uint32_t>(flags), 4) + put.born +
                     big_endian(static_cast<uint64_t>(numbers.time), 8) + numbers.host() + put.rest;
  made.replace(0, 4, big_endian(made.size(), 4));
  return made.replace(20, 8, big_endian(static_cast<uint64_t>(queue_offset), 8));
}

// The result of `call`, or nothing if it rejects its input with an "expected" text.
template <typename Call>
auto result_of(Call call) -> std::optional<decltype(call())> {
  try {
    return call();
  } catch (const PutFault& fault) {
    check(fault.text.find("expected ") != std::string::npos, "a rejection says what was expected");
  } catch (const std::invalid_argument& rejection) {
    check(std::strstr(rejection.what(), "expected ") != nullptr, "a rejection says what was expected");
  }
  return std::nullopt;
}

void check_puts(const ReadPuts& found, const std::vector<std::optional<Put>>& puts) {
  std::map<std::pair<std::string, int32_t>, int32_t> queues;
  check(found.queue.size() == puts.size() && found.has_id.size() == puts.size(), "every put is read");
  for (size_t i = 0; i < puts.size(); i++) {
    const Put& put = *puts[i];
    const auto number = static_cast<int32_t>(queues.size());
    const auto [queue, is_new] = queues.try_emplace({put.topic, put.queue_id}, number);
    check(found.queue[i] == queue->second, "queues are numbered in their first order");
    check(found.queues[static_cast<size_t>(queue->second)] == queue->first, "queues have their names");
    check(found.sys_flag[i] == put.flags, "a put has its flags");
    check((found.has_id[i] != 0) == put.id.has_value(), "an identity is found");
    const std::string id = put.id.value_or(std::string(24, '\0'));
    check(std::equal(id.begin(), id.end(), reinterpret_cast<const char*>(&found.ids[24 * i])),
          "an identity is decoded");
  }
  check(found.queues.size() == queues.size(), "there are no other queues");
}

// Stamped puts become entries, and each message gets its position.
void check_positions(const std::vector<std::string>& bodies) {
  std::vector<ByteRange> ranges;
  for (const std::string& body : bodies) {
    ranges.push_back({reinterpret_cast<const uint8_t*>(body.data()), static_cast<int64_t>(body.size())});
  }
  std::vector<uint8_t> block(static_cast<size_t>(block_size(ranges)));
  pack(ranges, block.data());
  const PackedBodies packed{static_cast<int64_t>(bodies.size()), {block.data(), static_cast<int64_t>(block.size())}};
  const Fitting fitting = find_fitting(packed, 0, INT32_MAX);
  std::vector<uint8_t> data(static_cast<size_t>(fitting.size)), units(bodies.size() * kIndexUnitSize);
  encode(packed, fitting, {5, 1, 4096}, data.data(), units.data());
  patch_physical_offsets(data.data(), fitting.size, {units.data(), static_cast<int64_t>(units.size())});
  size_t at = 0;
  for (std::string body : bodies) {
    body.replace(28, 8, big_endian(4096 + at + 48, 8));
    at += 48;
    check(std::memcmp(&data[at], body.data(), body.size()) == 0, "a message gets its position, and nothing else");
    at += body.size();
  }
}

// Only positions in messages change, for any bytes as entries.
void check_patch(const std::vector<uint8_t>& bytes, int64_t count) {
  std::vector<uint8_t> data = bytes;
  const auto units = static_cast<int64_t>(std::min<size_t>(static_cast<size_t>(count) * kIndexUnitSize, data.size()));
  const ByteRange range{bytes.data(), units};
  result_of([&] { return patch_physical_offsets(data.data(), static_cast<int64_t>(data.size()), range), true; });
}

void check_stamps(const PackedBodies& bodies, const std::vector<std::optional<Put>>& puts, const Numbers& numbers,
                  bool are_all_puts) {
  std::vector<uint8_t> keep;
  std::vector<int64_t> offsets;
  for (size_t i = 0; i < static_cast<size_t>(bodies.count); i++) {
    keep.push_back(numbers.keeps(i));
    offsets.push_back(numbers.time - static_cast<int64_t>(i));
  }
  const std::string host = numbers.host();
  const Stamp stamp{numbers.time, host};
  std::vector<uint8_t> block;
  const auto plan = result_of([&] {
    const Stamped planned = plan_stamps(bodies, keep.data(), offsets.data(), stamp);
    block.resize(static_cast<size_t>(planned.block_size));  // so that ASan finds reads after its end
    stamp_puts(planned, stamp, block.data());
    return planned;
  });
  check(plan.has_value() || !are_all_puts, "puts can be stamped");
  if (!plan) return;
  const PackedBodies made{static_cast<int64_t>(plan->sizes.size()), {block.data(), plan->block_size}};
  if (!are_all_puts || made.count == 0) return;
  std::vector<std::string> expected;
  for (size_t i = 0; i < puts.size(); i++) {
    if (numbers.keeps(i)) expected.push_back(stamped(*puts[i], offsets[i], numbers));
  }
  std::vector<std::string> found;
  for (const ByteRange& body : unpack(made)) {
    found.emplace_back(reinterpret_cast<const char*>(body.data), static_cast<size_t>(body.size));
  }
  check(found == expected, "a stamped put has its queue offset, the time and the host");
  check_positions(found);
}

// Usually makes a put of a body.
void mend_put(uint8_t* body, size_t size, Random& random) {
  if (size < 91 || random.one_in(6)) return;
  const bool is_v2 = random.one_in(8);
  store_be32(body + 4, static_cast<uint32_t>(is_v2 ? kMessageMagicV2 : kMessageMagicV1));
  store_be32(body + 36, load_be32u(body + 36) & (random.one_in(20) ? ~0u : 0x73Fu));
  body[12] &= random.one_in(20) ? 0xFF : 0x7F;
  mend_message(body, size, 0, random);
  Message message;
  if (!parse_message(body, static_cast<int64_t>(size), message)) return;
  const auto at = [&](const uint8_t* p) { return body + (p - body); };
  for (uint32_t i = 0; i < message.topic_length && !random.one_in(200); i++) {
    at(message.topic)[i] = static_cast<uint8_t>(kTopicBytes[at(message.topic)[i] % (sizeof kTopicBytes - 1)]);
  }
  if (message.properties_length == 0 || random.one_in(8)) return;
  std::string properties;
  while (properties.size() < message.properties_length) {
    const std::string id = "__DLEDGER_ID\1" + std::string(32, static_cast<char>('A' + random.below(26)));
    properties +=
        random.one_in(4) ? id : std::string(1 + random.below(5), 'n') + "\1" + std::string(random.below(9), 'v');
    properties += '\2';
  }
  std::memcpy(at(message.properties), properties.data(), message.properties_length);
}

void mend_bodies(const Numbers& numbers, uint8_t* bytes, size_t size, Random& random) {
  size_t at = static_cast<size_t>(4 * numbers.count);
  if (size < at) return;
  for (int64_t i = 0; i < numbers.count; i++) {
    size_t length = load_be32u(bytes + 4 * i);
    const bool is_last = i + 1 == numbers.count;
    if (length > size - at || is_last) length = is_last ? size - at : std::min(size - at, 91 + random.below(200));
    store_be32(bytes + 4 * i, static_cast<uint32_t>(length));
    mend_put(bytes + at, length, random);
    at += length;
  }
}

// A column of texts that owns its values.
struct Texts {
  std::vector<int32_t> offsets{0};
  std::vector<uint8_t> valid, bytes;

  void add(const std::optional<std::string>& value) {
    const size_t row = offsets.size() - 1;
    if (row % 8 == 0) valid.push_back(0);
    if (value) {
      valid.back() = static_cast<uint8_t>(valid.back() | 1u << row % 8);
      bytes.insert(bytes.end(), value->begin(), value->end());
    }
    offsets.push_back(static_cast<int32_t>(bytes.size()));
  }
  TextColumn view() const {
    TextColumn column;
    column.is_present = true;
    column.valid = valid.data();
    column.offsets = offsets.data();
    column.bytes = bytes.data();
    return column;
  }
};

template <typename T>
struct Values {
  std::vector<T> values;
  std::vector<uint8_t> valid;

  void add(int64_t value, bool is_valid) {
    if (values.size() % 8 == 0) valid.push_back(0);
    if (is_valid) valid.back() = static_cast<uint8_t>(valid.back() | 1u << values.size() % 8);
    values.push_back(static_cast<T>(value));
  }
  NumberColumn<T> view() const {
    NumberColumn<T> column;
    column.is_present = true;
    column.valid = valid.data();
    column.values = values.data();
    return column;
  }
};

// Makes rows of bytes, until they end: texts and numbers, most of them valid.
struct Rows {
  Texts topics, bodies, tags, keys, names, values;
  std::vector<int32_t> pairs{0};
  Values<int32_t> queue_ids, flags, transactions, delay_levels;
  Values<int64_t> times;
  int64_t count = 0;

  explicit Rows(const std::vector<uint8_t>& bytes) : bytes_(bytes) {
    while (at_ < bytes.size() && count < 40) add();
  }

  PutBatch view() const {
    PutBatch batch;
    batch.rows = count;
    batch.topic = topics.view();
    batch.body = bodies.view();
    batch.tags = tags.view();
    batch.keys = keys.view();
    batch.properties.is_present = true;
    batch.properties.offsets = pairs.data();
    batch.properties.names = names.view();
    batch.properties.values = values.view();
    batch.queue_id = queue_ids.view();
    batch.flag = flags.view();
    batch.transaction = transactions.view();
    batch.delay_level = delay_levels.view();
    batch.born_timestamp = times.view();
    return batch;
  }

 private:
  uint8_t next() { return at_ < bytes_.size() ? bytes_[at_++] : uint8_t{0}; }

  std::optional<std::string> text(size_t longest) {
    const size_t size = next() % (longest + 1);
    if (size == longest) return std::nullopt;
    std::string made;
    for (size_t i = 0; i < size; i++) {
      const uint8_t byte = next();
      made += static_cast<char>(byte < 240 ? 'a' + byte % 26 : byte - 240);
    }
    return made;
  }

  void add() {
    static const std::string kTopics[] = {
        "T", "T", "U", std::string(127, 'V'), std::string(128, 'W'), "SCHEDULE_TOPIC_XXXX"};
    topics.add(kTopics[next() % 6]);
    bodies.add(text(60));
    tags.add(text(9));
    keys.add(text(20));
    for (int pair = next() % 5; pair > 0; pair--) {
      names.add(text(250).value_or("n"));
      values.add(text(20));
    }
    pairs.push_back(static_cast<int32_t>(names.offsets.size() - 1));
    queue_ids.add(next() % 3, next() % 2 == 0);
    flags.add(next(), next() % 2 == 0);
    transactions.add(next() % 4 * 4, next() % 2 == 0);
    delay_levels.add(next() % 20, next() % 4 == 0);
    times.add(next(), next() % 2 == 0);
    count++;
  }

  const std::vector<uint8_t>& bytes_;
  size_t at_ = 0;
};

void check_rows(const Numbers& numbers, const std::vector<uint8_t>& bytes) {
  const Rows rows(bytes);
  if (rows.count == 0) return;
  const PutBatch batch = rows.view();
  PutSettings settings;
  if (numbers.keeps(0)) settings.producer = "producer";
  settings.born_host = settings.store_host = numbers.host();
  settings.round_robin = numbers.time & INT64_MAX;
  settings.has_trailing_separator = numbers.keeps(1);
  for (const char* topic : {"T", "U", "SCHEDULE_TOPIC_XXXX"}) settings.queue_counts.emplace_back(topic, 3);
  for (const auto& [letter, size] : {std::pair('V', 127), std::pair('W', 128)}) {
    settings.queue_counts.emplace_back(std::string(static_cast<size_t>(size), letter), 3);
  }
  Ordinals ordinals;
  std::vector<uint8_t> block;
  const auto encoded = result_of([&] {
    RowEncoder encoder(batch, settings);
    block.resize(static_cast<size_t>(encoder.block_size()));  // so that ASan finds reads after its end
    encoder.encode(ordinals, block.data());
    return true;
  });
  if (!encoded) return;
  const ReadPuts puts = read_puts({rows.count, {block.data(), static_cast<int64_t>(block.size())}});
  std::map<std::string, int> seen;
  for (size_t i = 0; i < puts.has_id.size(); i++) {
    check((puts.has_id[i] != 0) == settings.producer.has_value(), "rows get an identity with a producer");
    const std::string id(reinterpret_cast<const char*>(&puts.ids[24 * i]), 24);
    check(puts.has_id[i] == 0 || seen[id]++ == 0, "identities are unique");
  }
  check(ordinals.size() <= static_cast<size_t>(rows.count), "contents are counted once");
}

}  // namespace
}  // namespace dledger::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace dledger::fuzz;
  Random random(seed);
  size = LLVMFuzzerMutate(data, size, max_size);
  if (size > kNumbers && !random.one_in(5)) mend_bodies(Numbers(data), data + kNumbers, size - kNumbers, random);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dledger::fuzz;
  using dledger::ByteRange;
  if (size < kNumbers || size > kMaxInputSize) return -1;
  const TimeLimit limit(kSeconds);
  const Numbers numbers(data);
  const std::vector<uint8_t> bytes(data + kNumbers, data + size);  // so that ASan finds reads after its end
  check_patch(bytes, numbers.count);
  check_rows(numbers, bytes);
  const dledger::PackedBodies bodies{numbers.count, {bytes.data(), static_cast<int64_t>(bytes.size())}};
  const auto unpacked = result_of([&] { return unpack(bodies); });
  const auto found = result_of([&] { return read_puts(bodies); });
  check(unpacked || !found, "puts are a block");
  if (!unpacked) return 0;
  std::vector<std::optional<Put>> puts;
  for (const ByteRange& body : *unpacked) {
    puts.push_back(read_put(std::string(reinterpret_cast<const char*>(body.data), static_cast<size_t>(body.size))));
  }
  const bool are_all_puts = std::all_of(puts.begin(), puts.end(), [](const auto& put) { return put.has_value(); });
  check(found.has_value() == are_all_puts, "only valid messages are accepted");
  if (found) check_puts(*found, puts);
  check_stamps(bodies, puts, numbers, are_all_puts);
  return 0;
}
