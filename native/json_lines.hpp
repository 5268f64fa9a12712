// Rows of an Arrow batch as lines of JSON: the same bytes as format/json_text.py, which defines them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "arrow_views.hpp"

namespace dledger {

// How bytes become text; Text is UTF-8, and each invalid byte is a backslash, x and two hex digits.
enum class BytesForm { Base64, Hex, Text };

// A growing text whose memory is reused.
class TextBuffer {
 public:
  std::string_view view() const { return {reinterpret_cast<const char*>(memory_.data()), size_}; }
  void clear() { size_ = 0; }

  // Memory for at least so many bytes at the end. `end_at` keeps those before `end`.
  uint8_t* reserve(size_t count) {
    if (memory_.size() - size_ < count) memory_.resize(2 * memory_.size() + count);
    return memory_.data() + size_;
  }
  void end_at(const uint8_t* end) { size_ = static_cast<size_t>(end - memory_.data()); }
  void append(std::string_view text);

 private:
  static constexpr size_t kMinCapacity = 4096;

  std::vector<uint8_t> memory_ = std::vector<uint8_t>(kMinCapacity);
  size_t size_ = 0;
};

struct BoolColumn : ColumnView {
  const uint8_t* bits = nullptr;
};

struct TimeColumn : NumberColumn<int64_t> {};  // microseconds since 1970

struct BinaryColumn : TextColumn {};

// Columns of int32, int64, bool, timestamp[us], string, binary and map<string, string>; strings are UTF-8.
class JsonLines {
 public:
  // The batch must outlive this. Throws std::invalid_argument for columns of other types, and for offsets of texts or
  // maps that do not ascend.
  JsonLines(const ArrowSchema& schema, const ArrowArray& batch, BytesForm form);

  // The lines of the next rows, each with a newline, of about `size` bytes; empty after the last row. Valid until the
  // next call. Throws std::invalid_argument for a time outside the years 1 to 9999.
  std::string_view next(size_t size);

 private:
  using Values = std::variant<NumberColumn<int32_t>, NumberColumn<int64_t>, BoolColumn, TimeColumn, TextColumn,
                              BinaryColumn, MapColumn>;
  struct Field {
    std::string prefix;  // the separator and the name before the value
    Values values;
  };

  static Values view(const ArrowSchema& schema, const ArrowArray& array, int64_t offset);
  void put_row(int64_t row);
  template <typename T>
  void put(const NumberColumn<T>& column, int64_t row);
  void put(const BoolColumn& column, int64_t row);
  void put(const TimeColumn& column, int64_t row);
  void put(const TextColumn& column, int64_t row);
  void put(const BinaryColumn& column, int64_t row);
  void put(const MapColumn& column, int64_t row);

  int64_t rows_, row_ = 0;
  BytesForm form_;
  std::vector<Field> fields_;
  TextBuffer text_;
};

}  // namespace dledger
