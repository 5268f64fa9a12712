// Copies messages of a log into a new file of a CommitLog. The same as format/message.py.
#pragma once

#include <cstdint>
#include <vector>

#include "walk.hpp"

namespace dledger {

// The outcome for a message, numbered as in format/message.py.
enum class CopyOutcome : uint8_t { V1 = 0, V2 = 1, LongTopic = 2, LongProperties = 3, Changed = 4 };

struct CopiedMessages {
  int64_t size = 0;  // the number of copied bytes
  std::vector<uint8_t> outcomes;
};

// Copies `count` messages of `sizes` bytes at the positions `starts` into consecutive bytes of `into`, which has room
// for all of them. Its first byte gets `position` in the new log.
CopiedMessages copy_messages(const SegmentView& view, const int64_t* starts, const int64_t* sizes, int64_t count,
                             int64_t position, uint8_t* into);

}  // namespace dledger
