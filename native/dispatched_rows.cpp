#include "dispatched_rows.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "bytes.hpp"
#include "hash.hpp"
#include "message.hpp"
#include "puts.hpp"

namespace dledger {
namespace {

constexpr int64_t kMaxQueueOffset = (int64_t{1} << 62) / int64_t{kUnitSize};
constexpr int32_t kFlagPrepared = 0x4, kFlagInnerBatch = 0x80;

struct Rows {
  NumberColumn<int64_t> pos, index, term, queue_offset, stored;
  NumberColumn<int32_t> queue_id, size, sys_flag;
  TextColumn topic, tags, keys, uniq_key, put_id;

  int64_t offset(int64_t row) const { return pos.values[pos.offset + row]; }
};

Rows view_rows(const ArrowSchema& schema, const ArrowArray& array) {
  expect_format(schema, "+s");
  Rows rows;
  for (int64_t i = 0; i < schema.n_children; i++) {
    const ArrowSchema& of = *schema.children[i];
    const ArrowArray& column = *array.children[i];
    const std::string_view name = of.name;
    if (name == "pos") rows.pos = view_int64(of, column, array.offset);
    if (name == "index") rows.index = view_int64(of, column, array.offset);
    if (name == "term") rows.term = view_int64(of, column, array.offset);
    if (name == "queueOffset") rows.queue_offset = view_int64(of, column, array.offset);
    if (name == "storeTimestamp") rows.stored = view_values<int64_t>(column, array.offset);
    if (name == "queueId") rows.queue_id = view_int32(of, column, array.offset);
    if (name == "storeSize") rows.size = view_int32(of, column, array.offset);
    if (name == "sysFlag") rows.sys_flag = view_int32(of, column, array.offset);
    if (name == "topic") rows.topic = view_text(of, column, array.offset);
    if (name == "tags") rows.tags = view_text(of, column, array.offset);
    if (name == "keys") rows.keys = view_text(of, column, array.offset);
    if (name == "uniqKey") rows.uniq_key = view_text(of, column, array.offset);
    if (name == "putId") rows.put_id = view_binary(of, column, array.offset);
  }
  return rows;
}

// Whether a topic can be a folder.
bool is_folder(std::string_view topic) {
  if (topic.empty() || topic.size() > kMaxTopicSize || topic == "." || topic == "..") return false;
  return topic.find('/') == topic.npos && topic.find('\0') == topic.npos;
}

int64_t hash_of(std::string_view text) { return java_hash(reinterpret_cast<const uint8_t*>(text.data()), text.size()); }

class Dispatch {
 public:
  Dispatch(const Rows& rows, const DispatchSettings& settings) : rows_(rows), settings_(settings) {}

  DispatchedRows run(int64_t count) {
    for (int64_t row = 0; row < count; row++) add(row);
    sort_by_queue();
    return std::move(done_);
  }

 private:
  struct Unit {
    int32_t queue;
    int64_t queue_offset;
    uint8_t bytes[kUnitSize];
  };

  void add(int64_t row) {
    const int64_t stored = rows_.stored.at(row).value_or(0) / 1000;
    if (const auto index = rows_.index.at(row)) {
      if (done_.first_index < 0) done_.first_index = *index;
      done_.last_index = *index;
      done_.last_term = rows_.term.at(row).value_or(-1);
      add_id(row, *index, stored);
    }
    const int32_t queue = queue_of(row);
    if (queue < 0) {
      if (done_.skipped++ == 0) done_.first_skipped = row;
      return;
    }
    done_.messages++;
    if (stored > 0) {
      if (done_.first_stored == 0) done_.first_stored = stored;
      done_.last_stored = stored;
    }
    const auto flags = static_cast<int32_t>(rows_.sys_flag.at(row).value_or(0));
    const bool is_batch = settings_.skips_batches && ((flags & kFlagInnerBatch) != 0 || is_batch_topic(queue));
    done_.batches += is_batch;
    if ((flags & kFlagPrepared) == 0 && !is_batch) add_unit(row, queue);
    if ((flags & kFlagTransactionMask) != kFlagTransactionMask) add_keys(row, stored);
  }

  void add_id(int64_t row, int64_t index, int64_t stored) {
    const Text id = rows_.put_id.at(row);
    if (id.is_null()) return;
    done_.ids.insert(done_.ids.end(), id.data, id.data + id.size);
    done_.id_index.push_back(index);
    done_.id_stored.push_back(stored);
  }

  // The number of the row's queue, or -1 if it is no message that a queue can have.
  int32_t queue_of(int64_t row) {
    const Text topic = rows_.topic.at(row);
    if (topic.is_null()) return -1;
    const int64_t queue_id = rows_.queue_id.at(row).value_or(-1), offset = rows_.queue_offset.at(row).value_or(-1);
    if (queue_id < 0 || offset < 0 || offset > kMaxQueueOffset) return -1;
    const int32_t number = numbers_(topic.view(), static_cast<int32_t>(queue_id));
    if (static_cast<size_t>(number) == is_folder_.size()) is_folder_.push_back(is_folder(topic.view()));
    return is_folder_[static_cast<size_t>(number)] ? number : -1;
  }

  bool is_batch_topic(int32_t queue) const {
    const std::vector<std::string>& topics = settings_.batch_topics;
    return std::find(topics.begin(), topics.end(), queues_[static_cast<size_t>(queue)].first) != topics.end();
  }

  void add_unit(int64_t row, int32_t queue) {
    Unit unit{queue, *rows_.queue_offset.at(row), {}};
    store_be64(unit.bytes, static_cast<uint64_t>(rows_.offset(row) + settings_.header_size));
    store_be32(unit.bytes + 8, static_cast<uint32_t>(rows_.size.at(row).value_or(0)));
    store_be64(unit.bytes + 12, static_cast<uint64_t>(hash_of(rows_.tags.at(row).view())));
    units_.push_back(unit);
  }

  void add_keys(int64_t row, int64_t stored) {
    const Text unique = rows_.uniq_key.at(row), joined = rows_.keys.at(row), tags = rows_.tags.at(row);
    if (!unique.is_null()) add_key(row, stored, {}, unique.view());
    std::string_view left = joined.view();
    while (!left.empty()) {
      const size_t end = std::min(left.find(' '), left.size());
      if (end > 0) add_key(row, stored, {}, left.substr(0, end));
      left.remove_prefix(std::min(end + 1, left.size()));
    }
    if (settings_.has_tags && !tags.is_empty()) add_key(row, stored, "T#", tags.view());
  }

  void add_key(int64_t row, int64_t stored, std::string_view prefix, std::string_view key) {
    key_.assign(rows_.topic.at(row).view()).append("#").append(prefix).append(key);
    const int64_t hash = std::abs(hash_of(key_));
    done_.key_offset.push_back(rows_.offset(row) + settings_.header_size);
    done_.key_stored.push_back(stored);
    // Math.abs leaves Integer.MIN_VALUE negative, and negative hashes become 0 (IndexFile.indexKeyHashMethod).
    done_.key_hash.push_back(hash > INT32_MAX ? 0 : hash);
  }

  // The units of a queue stay in the order of the log.
  void sort_by_queue() {
    std::vector<size_t> next(queues_.size() + 1);
    for (const Unit& unit : units_) next[static_cast<size_t>(unit.queue) + 1]++;
    for (size_t i = 0; i < queues_.size(); i++) {
      if (next[i + 1] > 0) {
        done_.queues.push_back(queues_[i]);
        done_.counts.push_back(static_cast<int64_t>(next[i + 1]));
      }
      next[i + 1] += next[i];
    }
    done_.queue_offset.resize(units_.size());
    done_.units.resize(units_.size() * kUnitSize);
    for (const Unit& unit : units_) {
      const size_t to = next[static_cast<size_t>(unit.queue)]++;
      done_.queue_offset[to] = unit.queue_offset;
      std::memcpy(&done_.units[to * kUnitSize], unit.bytes, kUnitSize);
    }
  }

  const Rows& rows_;
  const DispatchSettings& settings_;
  DispatchedRows done_;
  std::vector<QueueName> queues_;
  QueueNumbers numbers_{queues_};
  std::vector<bool> is_folder_;  // of each queue
  std::vector<Unit> units_;
  std::string key_;
};

}  // namespace

DispatchedRows dispatched_rows(const ArrowSchema& schema, const ArrowArray& array, const DispatchSettings& settings) {
  const Rows rows = view_rows(schema, array);
  return Dispatch(rows, settings).run(array.length);
}

}  // namespace dledger
