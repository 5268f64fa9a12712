// Messages of a log, put one behind the other into a new file of a CommitLog.
#pragma once

#include <cstdint>
#include <vector>

#include "walk.hpp"

namespace dledger {

// What became of a message; as format/encode/message_copies.py numbers them.
enum class Placing : uint8_t { V1 = 0, V2 = 1, LongTopic = 2, LongProperties = 3, Changed = 4 };

struct Placed {
  int64_t size = 0;  // bytes of those that were placed
  std::vector<uint8_t> outcomes;
};

// Messages of `sizes` bytes at the positions `starts`, `count` of each, into memory with room for all of them, of which
// the first byte is to stand at `position` of the new log.
Placed place_messages(const SegmentView& view, const int64_t* starts, const int64_t* sizes, int64_t count,
                      int64_t position, uint8_t* into);

}  // namespace dledger
