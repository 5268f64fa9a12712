// Encodes rows of an Arrow batch as puts, each with its identity. The same, with the same error texts, as
// format/encode/put_rows.py.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "arrow_views.hpp"
#include "hash.hpp"
#include "puts.hpp"

namespace dledger {

// The columns of PUT_SCHEMA.
struct PutBatch {
  int64_t rows = 0;
  TextColumn topic, body, tags, keys;
  MapColumn properties;
  NumberColumn<int32_t> queue_id, flag, transaction, delay_level;
  NumberColumn<int64_t> born_timestamp;
};

// Throws std::invalid_argument for columns that are not in PUT_SCHEMA.
PutBatch view_batch(const ArrowSchema& schema, const ArrowArray& array);

// Settings for all messages of a batch; see format/encode/encoded.py.
struct PutSettings {
  std::optional<std::string> producer;
  int64_t born_timestamp = 0;
  std::string born_host, store_host;
  std::vector<std::pair<std::string, int32_t>> queue_counts;
  int64_t round_robin = 0;
  bool has_trailing_separator = true;
  int64_t first_row = 0;
};

// Counts equal contents: 16 bytes for each distinct one in a table that is at most three quarters full, and more only
// for repeated ones.
class Ordinals {
 public:
  std::mutex mutex;  // for the caller of `next`

  size_t size() const { return used_ + (zeros_ > 0 ? 1 : 0); }
  uint64_t next(const Hash128& content);  // the ordinal: how often it was counted before
  void prefetch(const Hash128& content) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[content.first & (slots_.size() - 1)]);
  }

 private:
  struct Hash {
    size_t operator()(const Hash128& value) const { return static_cast<size_t>(value.first); }
  };

  size_t slot_of(const Hash128& content) const;
  void grow();

  std::vector<Hash128> slots_;  // zeros in a free slot
  size_t used_ = 0;
  uint64_t zeros_ = 0;  // count of the content whose hash is zero
  std::unordered_map<Hash128, uint64_t, Hash> repeats_;
};

// Encodes the rows of one batch. All are checked before the first is written.
class RowEncoder {
 public:
  // Throws PutFault with the number of the first invalid row.
  RowEncoder(const PutBatch& batch, const PutSettings& settings);

  int64_t block_size() const { return block_size_; }

  // Fills a block of `block_size` bytes.
  void encode(Ordinals& ordinals, uint8_t* block);

 private:
  struct Topic {
    std::string name, problem;
    int32_t queues = 0;  // 0: unknown
    uint64_t in_turn = 0;
  };

  // The message of a row.
  struct Planned {
    const Topic* topic;
    int32_t size, queue_id, properties_size;
    int32_t delay_level;  // 0: none
    bool waits;           // in the topic of delays
  };

  Planned plan(int64_t row);
  Topic& topic_of(const Text& name);
  void check_numbers(int64_t row, const Topic& topic) const;
  int64_t plan_properties(int64_t row, const Topic& topic, Text& keys);
  void check_property(const Text& name, const Text& value, bool may_delay) const;
  int64_t add_property(std::string_view name, int64_t value_size);
  bool is_new(std::string_view name);
  int32_t queue_id(int64_t row, Topic& topic, const Text& keys) const;
  int64_t plan_delay(int64_t row, Planned& planned);
  Hash128 content(int64_t row);
  size_t content_bound(int64_t row) const;
  void make_id(const Hash128& content, Ordinals& ordinals, uint8_t* id) const;
  void write(int64_t row, const uint8_t* id, uint8_t* to) const;
  void write_properties(int64_t row, const uint8_t* id, uint8_t* to) const;

  const PutBatch& batch_;
  const PutSettings& settings_;
  std::unordered_map<std::string, Topic> topics_;
  Topic* last_topic_ = nullptr;
  std::vector<std::string_view> names_;  // of the current row's properties
  std::unordered_set<std::string_view> many_names_;
  std::vector<Planned> planned_;
  std::vector<uint8_t> content_, front_;
  int64_t block_size_ = 0;
};

}  // namespace dledger
