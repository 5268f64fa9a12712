// Checks and stamps puts. The same, with the same error texts, as
// format/encode/put_messages.py.
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

namespace dledger {

constexpr size_t kProducerSize = 8;
constexpr size_t kIdSize = 24;      // producer, then a hash of content and ordinal
constexpr size_t kIdTextSize = 32;  // as base64url
constexpr char kPropertyId[] = "__DLEDGER_ID";
constexpr int64_t kMaxTopicSize = 255;

// A row that is not a valid message, or a body that is not a valid put. Becomes ValueError in Python.
struct PutFault : std::runtime_error {
  explicit PutFault(const std::string& what_is_wrong) : std::runtime_error(what_is_wrong), text(what_is_wrong) {}

  std::string text;  // what() ends at the first zero
};

// The problem of an invalid topic name, or an empty text.
std::string topic_problem(std::string_view topic);

void write_id_text(const uint8_t* id, uint8_t* text);
// Returns false if the text is no identity.
bool read_id_text(std::string_view text, uint8_t* id);

// What a leader needs to know of puts, in their order; `queue` has numbers of `queues`.
struct ReadPuts {
  std::vector<std::pair<std::string, int32_t>> queues;
  std::vector<int32_t> queue, sys_flag;
  std::vector<uint8_t> ids, has_id;
};

// Throws PutFault with the number of the first invalid put, std::invalid_argument if the block's lengths do not fit it.
ReadPuts read_puts(const PackedBodies& bodies);

// What a store writes into a put. `host` has 8 or 20 bytes.
struct Stamp {
  int64_t timestamp;
  std::string_view host;
};

// The numbers of the puts that are kept, and their sizes with the store's host.
struct Stamped {
  std::vector<int32_t> numbers;
  std::vector<ByteRange> messages;
  std::vector<int64_t> queue_offsets;
  std::vector<int32_t> sizes;
  int64_t block_size = 0;
};

// `keep` and `queue_offsets` have a value for each body. Both functions throw PutFault for an invalid or too long
// message, std::invalid_argument if the block's lengths do not fit it. The plan reads little of the messages, because
// reading all from memory would cost as much as copying them.
Stamped plan_stamps(const PackedBodies& bodies, const uint8_t* keep, const int64_t* queue_offsets, const Stamp& stamp);
void stamp_puts(const Stamped& plan, const Stamp& stamp, uint8_t* block);
// Whether all puts are kept with their sizes, so that `stamp_in_place` can be called instead.
bool keeps_all(const Stamped& plan, const PackedBodies& bodies);
void stamp_in_place(const Stamped& plan, const Stamp& stamp);

// Numbers the puts that are kept: each gets the next offset of its queue, which `ends` has, and 0 if it is prepared or
// rolled back. Throws std::invalid_argument for a queue that is not in `ends`.
void number_puts(const ByteRange& queue, const ByteRange& sys_flag, const uint8_t* keep, std::vector<int64_t>& ends,
                 int64_t* queue_offsets);

// Writes where each body is: index, position and queue offset of its entry, 24 bytes. A run of consecutive positions
// begins at each (index, position) of `runs`. Throws std::invalid_argument if the block's lengths do not fit it.
constexpr int64_t kLocationSize = 24;
void locate_puts(const PackedBodies& bodies, int64_t first_index, const std::vector<std::pair<int64_t, int64_t>>& runs,
                 const uint8_t* queue_offsets, uint8_t* locations);

// Writes the position of each message among consecutive entries into it. Throws std::invalid_argument if the index
// units do not fit the entries.
void patch_physical_offsets(uint8_t* data, int64_t size, const ByteRange& units);

}  // namespace dledger
