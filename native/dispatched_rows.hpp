// What a broker writes into ConsumeQueues and IndexFiles for rows of the log. The same as format/dispatched_rows.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arrow_views.hpp"
#include "queue_numbers.hpp"

namespace dledger {

constexpr size_t kUnitSize = 20;

struct DispatchSettings {
  int64_t header_size = 0;  // of an entry
  bool has_tags = false, skips_batches = false;
  std::vector<std::string> batch_topics;
};

// `units` and `queue_offset` are in the order of `queues`, of which each has `counts` units.
struct DispatchedRows {
  std::vector<QueueName> queues;
  std::vector<int64_t> counts, queue_offset;
  std::vector<uint8_t> units;
  std::vector<int64_t> key_offset, key_stored, key_hash;
  std::vector<int64_t> id_index, id_stored;
  std::vector<uint8_t> ids;
  int64_t first_index = -1, last_index = -1, last_term = -1, first_stored = 0, last_stored = 0;
  int64_t messages = 0, batches = 0, skipped = 0, first_skipped = -1;
};

// Throws std::invalid_argument for a column of another type.
DispatchedRows dispatched_rows(const ArrowSchema& schema, const ArrowArray& array, const DispatchSettings& settings);

}  // namespace dledger
