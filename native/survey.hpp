// Surveys a segment in one pass: what each byte is, and every problem. The same as
// pyspark_dledger/format/scan/survey.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ranges.hpp"

namespace dledger {

enum class ExtentKind : uint8_t { Entry, Message, Blank, Unwritten, Stale, Corrupt };
constexpr int kExtentKinds = 6;
extern const char* const kExtentNames[kExtentKinds];

enum class Code : uint8_t {
  CorruptBytes,
  ShortFile,
  IndexGap,
  TermOrder,
  PosDiffers,
  HeaderField,
  BodyCrc,
  MessageStructure,
  MessageOffset,
  MessageCrc,
  PropertyCrc,
  MessageTimestamp,
  BlankSize,
  StaleBytes,
  TrailingBytes,
};
constexpr int kCodes = 15;
extern const char* const kCodeNames[kCodes];

struct SurveyExtent {
  ExtentKind kind;
  int64_t pos, size;
};

struct Problem {
  Code code;
  int64_t pos, size;
  std::optional<int64_t> index;
  std::string text;
};

struct Survey {
  int64_t entries = 0, messages = 0;
  int64_t first_index = -1, first_term = -1, first_pos = -1, last_index = -1, last_term = -1, last_pos = -1;
  int64_t first_store_timestamp = -1, last_store_timestamp = -1;
  int64_t sizes[kExtentKinds] = {};
  std::vector<SurveyExtent> extents;
  std::vector<Problem> problems;
  int64_t counts[kCodes] = {};  // by Code
};

struct SurveyRequest {
  SegmentId segment;
  int64_t start = 0, end = 0;
  bool verify_crc = true;
  int64_t max_problems = 0;
};

// Throws StoreFault if the file cannot be mapped.
Survey survey(const SurveyRequest& request);

}  // namespace dledger
