// Rows of an Arrow batch as lines of JSON: byte for byte those of format/json_text.py, which says what they look like.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "arrow_views.hpp"

namespace dledger {

// How bytes become text; Text is UTF-8, with a backslash, x and two digits for each byte that is none.
enum class BytesForm { Base64, Hex, Text };

// Text that grows; its memory is used again.
class TextBuffer {
 public:
  std::string_view view() const { return {reinterpret_cast<const char*>(memory_.data()), size_}; }
  void clear() { size_ = 0; }

  // Room for at least so many bytes at the end, of which `end_at` keeps those before `end`.
  uint8_t* room(size_t count) {
    if (memory_.size() - size_ < count) memory_.resize(2 * memory_.size() + count);
    return memory_.data() + size_;
  }
  void end_at(const uint8_t* end) { size_ = static_cast<size_t>(end - memory_.data()); }
  void append(std::string_view text);

 private:
  static constexpr size_t kSmallest = 4096;

  std::vector<uint8_t> memory_ = std::vector<uint8_t>(kSmallest);
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
  // A view of a batch that has to stay as long as this lives. Throws std::invalid_argument for columns of other types,
  // and where offsets of texts or maps do not ascend.
  JsonLines(const ArrowSchema& schema, const ArrowArray& batch, BytesForm form);

  // The lines of the next rows, each with its end, of about `size` bytes; empty behind the last row. They stay until
  // the next call. Throws std::invalid_argument for a time outside the years 1 to 9999.
  std::string_view next(size_t size);

 private:
  using Values = std::variant<NumberColumn<int32_t>, NumberColumn<int64_t>, BoolColumn, TimeColumn, TextColumn,
                              BinaryColumn, MapColumn>;
  struct Field {
    std::string prefix;  // what stands between the value before and this one, its name among it
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
