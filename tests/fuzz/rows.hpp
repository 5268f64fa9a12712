// Reads and checks the rows of a batch from Arrow's buffers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scan.hpp"

namespace dledger::fuzz {

using Pairs = std::vector<std::pair<std::string, std::string>>;

struct Value {
  bool is_null = true;
  int64_t number = 0;
  std::string text;
  Pairs pairs;

  bool operator==(const Value& other) const {
    return is_null == other.is_null && number == other.number && text == other.text && pairs == other.pairs;
  }
};

// The values of the requested columns, in order.
using Row = std::vector<Value>;

// Takes the batch's memory.
std::vector<Row> rows_of(Batch& batch);

// Whether a text is valid UTF-8 by Table 3-7 of the Unicode Standard.
bool is_well_formed(const std::string& text);

}  // namespace dledger::fuzz
