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

struct SurveyExtent {
  ExtentKind kind;
  int64_t pos, size;
};

struct Problem {
  ProblemCode finding;  // see finding_of
  int64_t pos, size;
  std::optional<int64_t> index;
  Fact fact;
};

struct Survey {
  int64_t entries = 0, messages = 0;
  int64_t first_index = -1, first_term = -1, first_pos = -1, last_index = -1, last_term = -1, last_pos = -1;
  int64_t first_store_timestamp = -1, last_store_timestamp = -1;
  int64_t sizes[kExtentKinds] = {};
  std::vector<SurveyExtent> extents;
  std::vector<Problem> problems;
  int64_t counts[kProblemCodes] = {};  // by finding
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
