// Messages on their way into a log: rows become puts, puts become entries. The texts of errors are those of
// format/encode/put_rows.py and format/encode/put_messages.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "append.hpp"
#include "message.hpp"
#include "ranges.hpp"

namespace dledger {

constexpr size_t kProducerSize = 8;
constexpr size_t kIdSize = 24;      // producer, then a hash of the content and of how often it came before
constexpr size_t kIdTextSize = 32;  // as base64url
constexpr char kPropertyId[] = "__DLEDGER_ID";
constexpr int64_t kMaxPropertiesSize = 32767;
constexpr int64_t kMaxTopicSize = 255;
constexpr int64_t kLongestV1Topic = 127;

// A row that is no message, or a body that is no put. Becomes ValueError in Python, with all of its text.
struct PutFault : std::runtime_error {
  explicit PutFault(const std::string& what_is_wrong) : std::runtime_error(what_is_wrong), text(what_is_wrong) {}

  std::string text;  // what() ends at the first zero
};

// What is wrong with the name of a topic; empty for nothing.
std::string topic_problem(std::string_view topic);

void write_id_text(const uint8_t* id, uint8_t* text);
// False where the text is no identity.
bool read_id_text(std::string_view text, uint8_t* id);

// What a leader has to know of puts, by their ordinals; `queue` counts into `queues`.
struct ReadPuts {
  std::vector<std::pair<std::string, int32_t>> queues;
  std::vector<int32_t> queue, sys_flag;
  std::vector<uint8_t> ids, has_id;
};

// Throws PutFault for the first that is not a message as RocketMQ encodes it, std::invalid_argument where the lengths
// of the block do not fit it.
ReadPuts read_puts(const PackedBodies& bodies);

// What a store writes into a put. `host` has 8 or 20 bytes.
struct Stamp {
  int64_t timestamp;
  std::string_view host;
};

// The puts that are kept, by their ordinals, and the lengths that they have with the store's host.
struct Stamped {
  std::vector<int32_t> numbers;
  std::vector<ByteRange> messages;
  std::vector<int64_t> queue_offsets;
  std::vector<int32_t> sizes;
  int64_t block_size = 0;
};

// `keep` and `queue_offsets` have a value for each body. Both throw PutFault for what is no message and for one that
// grows too long, std::invalid_argument where the lengths of the block do not fit it. The plan looks at little of the
// messages: to wait for memory twice would cost as much as to copy them.
Stamped plan_stamps(const PackedBodies& bodies, const uint8_t* keep, const int64_t* queue_offsets, const Stamp& stamp);
void stamp_puts(const Stamped& plan, const Stamp& stamp, uint8_t* block);

// Writes into each message among consecutive entries where it stands. Throws std::invalid_argument where the index
// units do not fit the entries.
void patch_physical_offsets(uint8_t* data, int64_t size, const ByteRange& units);

struct PutIds {
  std::vector<int64_t> index, store_timestamp;
  std::vector<uint8_t> ids;
};

// The identities of the messages on the walk over [start, end).
PutIds put_ids(const SegmentView& view, int64_t start, int64_t end);

}  // namespace dledger
