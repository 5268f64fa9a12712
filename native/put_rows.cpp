#include "put_rows.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "crc32.hpp"
#include "text.hpp"

namespace dledger {
namespace {

constexpr int64_t kChunk = 16;     // rows whose bodies stay in the first-level cache from hash to copy
constexpr size_t kFewNames = 16;   // that are compared with each other
constexpr int64_t kMaxLevel = 18;  // of delays
constexpr int64_t kCommitted = 8;  // of transactions
constexpr size_t kFirstSlots = 1024;
constexpr std::string_view kScheduleTopic = "SCHEDULE_TOPIC_XXXX";
constexpr std::string_view kKeys = "KEYS", kTags = "TAGS", kDelay = "DELAY";
constexpr std::string_view kRealTopic = "REAL_TOPIC", kRealQueueId = "REAL_QID";

[[noreturn]] void fail(const std::string& text) { throw PutFault(text); }

// Whether all bytes are ASCII and none is 1 or 2.
bool is_plain(const uint8_t* p, size_t n) {
  constexpr uint64_t kOnes = 0x0101010101010101u, kTops = 0x8080808080808080u;
  uint64_t odd = 0;
  for (; n >= 8; n -= 8, p += 8) {
    const uint64_t word = load_le64(p), ones = word ^ kOnes, twos = word ^ (2 * kOnes);
    odd |= word | ((ones - kOnes) & ~ones) | ((twos - kOnes) & ~twos);  // the top bit of a byte that was 1 or 2
  }
  for (; n > 0; n--, p++) odd |= *p == 1 || *p == 2 ? 0x80 : *p;
  return (odd & kTops) == 0;
}

void check_text(const char* what, const Text& value) {
  if (is_plain(value.data, static_cast<size_t>(value.size))) return;
  if (!is_utf8(value.data, static_cast<size_t>(value.size))) {
    fail(std::string("expected UTF-8 as the ") + what + " of a property, found other bytes: encode them as text");
  }
  const auto separates = [](char c) { return c == kPropertySeparator || c == kNameValueSeparator; };
  const std::string_view bytes = value.view();
  if (std::any_of(bytes.begin(), bytes.end(), separates)) {
    fail(std::string("expected no character 1 or 2 in the ") + what +
         " of a property, found one: these separate properties");
  }
}

uint8_t* put_text(uint8_t* to, std::string_view text) {
  copy_inline(to, reinterpret_cast<const uint8_t*>(text.data()), text.size());
  return to + text.size();
}

// The last property may have no separator: there is no room for it before `end` then.
uint8_t* put_pair(uint8_t* to, std::string_view name, std::string_view value, const uint8_t* end) {
  to = put_text(to, name);
  *to++ = kNameValueSeparator;
  to = put_text(to, value);
  if (to < end) *to++ = kPropertySeparator;
  return to;
}

// The length + 1, or 0 for null, then the bytes.
uint8_t* put_content(uint8_t* to, const Text& value) {
  store_le32(to, static_cast<uint32_t>(value.size + 1));
  return put_text(to + 4, value.view());
}

uint8_t* put_content(uint8_t* to, const std::optional<int64_t>& value) {
  *to++ = value ? 1 : 0;
  if (!value) return to;
  store_le64(to, static_cast<uint64_t>(*value));
  return to + 8;
}

// The fields of a message before its body, without those that differ from row to row.
std::vector<uint8_t> make_front(const PutSettings& settings) {
  const size_t born = settings.born_host.size(), store = settings.store_host.size();
  std::vector<uint8_t> front(48 + born + 8 + store + 12 + 4);
  store_be64(&front[40], static_cast<uint64_t>(settings.born_timestamp));
  std::memcpy(&front[48], settings.born_host.data(), born);
  std::memcpy(&front[48 + born + 8], settings.store_host.data(), store);
  const int32_t flags = (born == 20 ? kFlagBornHostV6 : 0) | (store == 20 ? kFlagStoreHostV6 : 0);
  store_be32(&front[36], static_cast<uint32_t>(flags));
  return front;
}

int64_t length_width(std::string_view topic) { return static_cast<int64_t>(topic.size()) > kMaxV1TopicSize ? 2 : 1; }

}  // namespace

PutBatch view_batch(const ArrowSchema& schema, const ArrowArray& array) {
  expect_format(schema, "+s");
  PutBatch batch;
  batch.rows = array.length;
  for (int64_t i = 0; i < schema.n_children; i++) {
    const ArrowSchema& of = *schema.children[i];
    const ArrowArray& column = *array.children[i];
    const std::string_view name = of.name;
    const int64_t offset = array.offset;
    if (name == "topic") {
      batch.topic = view_text(of, column, offset);
    } else if (name == "body") {
      batch.body = view_binary(of, column, offset);
    } else if (name == "tags") {
      batch.tags = view_text(of, column, offset);
    } else if (name == "keys") {
      batch.keys = view_text(of, column, offset);
    } else if (name == "properties") {
      batch.properties = view_map(of, column, offset);
    } else if (name == "queueId") {
      batch.queue_id = view_int32(of, column, offset);
    } else if (name == "flag") {
      batch.flag = view_int32(of, column, offset);
    } else if (name == "transaction") {
      batch.transaction = view_int32(of, column, offset);
    } else if (name == "delayLevel") {
      batch.delay_level = view_int32(of, column, offset);
    } else if (name == "bornTimestamp") {
      batch.born_timestamp = view_int64(of, column, offset);
    } else {
      throw std::invalid_argument("expected a column of puts, found " + std::string(name));
    }
  }
  return batch;
}

uint64_t Ordinals::next(const Hash128& content) {
  if (content.is_zero()) return zeros_++;
  if (4 * (used_ + 1) > 3 * slots_.size()) grow();
  Hash128& slot = slots_[slot_of(content)];
  if (slot == content) return ++repeats_[content];
  slot = content;
  used_++;
  return 0;
}

// The slot of a content, or the free one for it.
size_t Ordinals::slot_of(const Hash128& content) const {
  const size_t mask = slots_.size() - 1;
  size_t at = content.first & mask;
  while (!slots_[at].is_zero() && !(slots_[at] == content)) at = (at + 1) & mask;
  return at;
}

void Ordinals::grow() {
  std::vector<Hash128> fewer(slots_.empty() ? kFirstSlots : 2 * slots_.size());
  fewer.swap(slots_);
  for (const Hash128& content : fewer) {
    if (!content.is_zero()) slots_[slot_of(content)] = content;
  }
}

RowEncoder::RowEncoder(const PutBatch& batch, const PutSettings& settings) : batch_(batch), settings_(settings) {
  for (const auto& [name, queues] : settings.queue_counts) topics_[name] = {name, topic_problem(name), queues, 0};
  front_ = make_front(settings);
  planned_.reserve(static_cast<size_t>(batch.rows));
  for (int64_t row = 0; row < batch.rows; row++) {
    try {
      planned_.push_back(plan(row));
    } catch (const PutFault& fault) {
      throw PutFault("row " + text(settings.first_row + row) + ": " + fault.text);
    }
    block_size_ += kLengthSize + planned_.back().size;
  }
  if (block_size_ > kMaxBlockSize) {
    fail("expected at most " + text(kMaxBlockSize) + " bytes of messages with their lengths, found " +
         text(block_size_) + ": encode fewer rows at once");
  }
}

RowEncoder::Planned RowEncoder::plan(int64_t row) {
  Topic& topic = topic_of(batch_.topic.at(row));
  check_numbers(row, topic);
  Text keys;
  int64_t properties_size = plan_properties(row, topic, keys);
  Planned planned{&topic, 0, queue_id(row, topic, keys), 0, 0, false};
  properties_size += plan_delay(row, planned);
  if (settings_.producer) properties_size += static_cast<int64_t>(sizeof kPropertyId - 1 + 1 + kIdTextSize + 1);
  if (properties_size > 0 && !settings_.has_trailing_separator) properties_size--;
  if (properties_size > kMaxPropertiesSize) {
    fail("expected at most " + text(kMaxPropertiesSize) + " bytes of properties, found " + text(properties_size) +
         ": move long values into the body");
  }
  const std::string_view stored_topic = planned.waits ? kScheduleTopic : std::string_view(topic.name);
  const int64_t size = static_cast<int64_t>(front_.size() + stored_topic.size()) + length_width(stored_topic) + 2 +
                       properties_size + std::max<int64_t>(batch_.body.at(row).size, 0);
  if (size > kMaxBodySize) {
    fail("expected a message of at most " + text(kMaxBodySize) + " bytes, found " + text(size) +
         ": shorten or compress the body");
  }
  planned.size = static_cast<int32_t>(size);
  planned.properties_size = static_cast<int32_t>(properties_size);
  return planned;
}

RowEncoder::Topic& RowEncoder::topic_of(const Text& name) {
  if (name.is_null()) fail("expected a topic, found null: set one in every row, or one for all rows");
  if (last_topic_ == nullptr || name.view() != last_topic_->name) {
    const auto [found, is_new] = topics_.try_emplace(std::string(name.view()));
    last_topic_ = &found->second;
    if (is_new) *last_topic_ = {found->first, topic_problem(name.view()), 0, 0};
  }
  if (!last_topic_->problem.empty()) fail(last_topic_->problem + ": choose another name");
  return *last_topic_;
}

void RowEncoder::check_numbers(int64_t row, const Topic& topic) const {
  const int64_t transaction = batch_.transaction.at(row).value_or(0), level = batch_.delay_level.at(row).value_or(0);
  if ((transaction & ~int64_t{kFlagTransactionMask}) != 0) {
    fail("expected transaction 0, 4, 8 or 12, found " + text(transaction) + ": 0 is none");
  }
  if (level < 0) fail("expected a delayLevel of at least 0, found " + text(level) + ": 0 is none");
  if (topic.queues == 0) {
    fail("expected the number of queues of topic " + topic.name + ", found none: request it from the leader");
  }
  const std::optional<int64_t> queue_id = batch_.queue_id.at(row);
  if (queue_id && (*queue_id < 0 || *queue_id >= topic.queues)) {
    fail("expected a queueId from 0 to " + text(topic.queues - 1) + ", found " + text(*queue_id) +
         ": add queues to the topic, or leave queueId null");
  }
}

// Checks the properties of the row. Returns their size, and its keys from properties or column.
int64_t RowEncoder::plan_properties(int64_t row, const Topic& topic, Text& keys) {
  names_.clear();
  int64_t size = 0;
  const bool may_delay = topic.name == kScheduleTopic;
  const auto [first, last] = batch_.properties.range(row);
  for (int64_t i = first; i < last; i++) {
    const Text name = batch_.properties.names.at(i), value = batch_.properties.values.at(i);
    if (value.is_null()) continue;
    check_property(name, value, may_delay);
    if (name.view() == kKeys) keys = value;
    size += add_property(name.view(), value.size);
  }
  for (const auto& [name, column] : {std::pair(kKeys, &batch_.keys), std::pair(kTags, &batch_.tags)}) {
    const Text value = column->at(row);
    if (value.is_null()) continue;
    check_text("value", value);
    size += add_property(name, value.size);
    if (name == kKeys) keys = value;
  }
  return size;
}

void RowEncoder::check_property(const Text& name, const Text& value, bool may_delay) const {
  if (name.is_empty()) fail("expected a property with a name, found an empty name: remove the property");
  check_text("name", name);
  check_text("value", value);
  if (name.view() == kPropertyId) {
    fail(std::string("expected no property ") + kPropertyId + ", found one: remove it, messages get their own");
  }
  if (name.view() == kDelay && !may_delay) {
    fail("expected no property DELAY, found one: use the column delayLevel");
  }
}

// Returns the property's size with its separators.
int64_t RowEncoder::add_property(std::string_view name, int64_t value_size) {
  if (!is_new(name)) {
    fail("expected property " + std::string(name) +
         " once, found it twice: remove one, in properties or in its own column");
  }
  names_.push_back(name);
  return static_cast<int64_t>(name.size()) + 1 + value_size + 1;
}

bool RowEncoder::is_new(std::string_view name) {
  if (names_.size() < kFewNames) return std::find(names_.begin(), names_.end(), name) == names_.end();
  if (names_.size() == kFewNames) many_names_ = {names_.begin(), names_.end()};
  return many_names_.insert(name).second;
}

int32_t RowEncoder::queue_id(int64_t row, Topic& topic, const Text& keys) const {
  if (const std::optional<int64_t> given = batch_.queue_id.at(row)) return static_cast<int32_t>(*given);
  const auto queues = static_cast<uint64_t>(topic.queues);
  if (!keys.is_empty()) {
    const int64_t hash = java_hash(keys.data, static_cast<size_t>(keys.size));
    return static_cast<int32_t>(static_cast<uint64_t>(std::abs(hash)) % queues);
  }
  return static_cast<int32_t>((static_cast<uint64_t>(settings_.round_robin) % queues + topic.in_turn++ % queues) %
                              queues);
}

// Adds the properties of a delayed message, which contain its real topic and queue. Returns their size.
int64_t RowEncoder::plan_delay(int64_t row, Planned& planned) {
  const int64_t level = batch_.delay_level.at(row).value_or(0);
  const int64_t transaction = batch_.transaction.at(row).value_or(0);
  if (level == 0) return 0;
  planned.waits = transaction == 0 || transaction == kCommitted;  // others are delayed when they are committed
  planned.delay_level = static_cast<int32_t>(planned.waits ? std::min(level, kMaxLevel) : level);
  int64_t size = add_property(kDelay, static_cast<int64_t>(text(planned.delay_level).size()));
  if (!planned.waits) return size;
  size += add_property(kRealTopic, static_cast<int64_t>(planned.topic->name.size()));
  return size + add_property(kRealQueueId, static_cast<int64_t>(text(planned.queue_id).size()));
}

void RowEncoder::encode(Ordinals& ordinals, uint8_t* block) {
  const std::lock_guard<std::mutex> lock(ordinals.mutex);
  uint8_t* length = block;
  uint8_t* to = block + kLengthSize * batch_.rows;
  Hash128 contents[kChunk];
  for (int64_t start = 0; start < batch_.rows; start += kChunk) {
    const int64_t end = std::min(start + kChunk, batch_.rows);
    for (int64_t row = start; settings_.producer && row < end; row++) {
      contents[row - start] = content(row);
      ordinals.prefetch(contents[row - start]);
    }
    for (int64_t row = start; row < end; row++) {
      uint8_t id[kIdSize];
      if (settings_.producer) make_id(contents[row - start], ordinals, id);
      const int32_t size = planned_[static_cast<size_t>(row)].size;
      store_be32(length, static_cast<uint32_t>(size));
      write(row, id, to);
      length += kLengthSize;
      to += size;
    }
  }
}

void RowEncoder::make_id(const Hash128& content, Ordinals& ordinals, uint8_t* id) const {
  uint8_t counted[24];
  content.store(counted);
  store_le64(counted + 16, ordinals.next(content));
  std::memcpy(id, settings_.producer->data(), kProducerSize);
  murmur128(counted, sizeof counted).store(id + kProducerSize);
}

// The hash of the user's values, see _content in format/encode/put_rows.py.
Hash128 RowEncoder::content(int64_t row) {
  const size_t bound = content_bound(row);
  if (content_.size() < bound) content_.resize(2 * bound);
  const Text body = batch_.body.at(row);
  uint8_t* to = put_content(content_.data(), batch_.topic.at(row));
  store_le32(to, static_cast<uint32_t>(body.size + 1));
  to += 4;
  if (!body.is_null()) {
    Hash128 halves[2];
    murmur128_halves(body.data, static_cast<size_t>(body.size), &halves[0], &halves[1]);
    for (const Hash128& half : halves) {
      half.store(to);
      to += sizeof half;
    }
  }
  to = put_content(to, batch_.tags.at(row));
  to = put_content(to, batch_.keys.at(row));
  const auto [first, last] = batch_.properties.range(row);
  store_le32(to, batch_.properties.is_null(row) ? 0 : static_cast<uint32_t>(last - first + 1));
  to += 4;
  for (int64_t i = first; i < last; i++) {
    to = put_content(to, batch_.properties.names.at(i));
    to = put_content(to, batch_.properties.values.at(i));
  }
  to = put_content(to, batch_.flag.at(row));
  to = put_content(to, batch_.born_timestamp.at(row));
  to = put_content(to, batch_.transaction.at(row));
  to = put_content(to, batch_.delay_level.at(row));
  to = put_content(to, batch_.queue_id.at(row));
  return murmur128(content_.data(), static_cast<size_t>(to - content_.data()));
}

// An upper bound of the size of a row's content.
size_t RowEncoder::content_bound(int64_t row) const {
  const auto [first, last] = batch_.properties.range(row);
  size_t bound = 160 + static_cast<size_t>(last - first) * 8;
  bound += batch_.topic.at(row).view().size() + batch_.tags.at(row).view().size() + batch_.keys.at(row).view().size();
  for (int64_t i = first; i < last; i++) {
    bound += batch_.properties.names.at(i).view().size() + batch_.properties.values.at(i).view().size();
  }
  return bound;
}

void RowEncoder::write(int64_t row, const uint8_t* id, uint8_t* to) const {
  const Planned& planned = planned_[static_cast<size_t>(row)];
  const std::string_view topic = planned.waits ? kScheduleTopic : std::string_view(planned.topic->name);
  const Text body = batch_.body.at(row);
  const auto body_size = body.view().size();
  std::memcpy(to, front_.data(), front_.size());
  store_be32(to, static_cast<uint32_t>(planned.size));
  const bool is_v1 = length_width(topic) == 1;
  store_be32(to + 4, static_cast<uint32_t>(is_v1 ? kMessageMagicV1 : kMessageMagicV2));
  store_be32(to + 8, body_size > 0 ? crc32(body.data, body_size) & 0x7FFFFFFFu : 0);
  store_be32(to + 12, static_cast<uint32_t>(planned.waits ? planned.delay_level - 1 : planned.queue_id));
  store_be32(to + 16, static_cast<uint32_t>(batch_.flag.at(row).value_or(0)));
  store_be32(to + 36, load_be32u(to + 36) | static_cast<uint32_t>(batch_.transaction.at(row).value_or(0)));
  if (const auto born = batch_.born_timestamp.at(row)) store_be64(to + 40, static_cast<uint64_t>(*born));
  to += front_.size();
  store_be32(to - 4, static_cast<uint32_t>(body_size));
  if (body_size > 0) std::memcpy(to, body.data, body_size);
  to += body_size;
  if (is_v1) {
    *to++ = static_cast<uint8_t>(topic.size());
  } else {
    store_be16(to, static_cast<uint32_t>(topic.size()));
    to += 2;
  }
  to = put_text(to, topic);
  store_be16(to, static_cast<uint32_t>(planned.properties_size));
  write_properties(row, id, to + 2);
}

void RowEncoder::write_properties(int64_t row, const uint8_t* id, uint8_t* to) const {
  const Planned& planned = planned_[static_cast<size_t>(row)];
  uint8_t* const end = to + planned.properties_size;
  const auto [first, last] = batch_.properties.range(row);
  for (int64_t i = first; i < last; i++) {
    const Text value = batch_.properties.values.at(i);
    if (!value.is_null()) to = put_pair(to, batch_.properties.names.at(i).view(), value.view(), end);
  }
  const Text keys = batch_.keys.at(row), tags = batch_.tags.at(row);
  if (!keys.is_null()) to = put_pair(to, kKeys, keys.view(), end);
  if (!tags.is_null()) to = put_pair(to, kTags, tags.view(), end);
  if (planned.delay_level > 0) to = put_pair(to, kDelay, text(planned.delay_level), end);
  if (planned.waits) {
    to = put_pair(to, kRealTopic, planned.topic->name, end);
    to = put_pair(to, kRealQueueId, text(planned.queue_id), end);
  }
  if (!settings_.producer) return;
  uint8_t id_text[kIdTextSize];
  write_id_text(id, id_text);
  put_pair(to, kPropertyId, {reinterpret_cast<const char*>(id_text), kIdTextSize}, end);
}

}  // namespace dledger
