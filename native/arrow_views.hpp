// Views of Arrow columns. The columns must outlive them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "columns.hpp"

namespace dledger {

// A text or bytes of a row; null if `size` is -1.
struct Text {
  const uint8_t* data = nullptr;
  int64_t size = -1;

  bool is_null() const { return size < 0; }
  bool is_empty() const { return size <= 0; }
  std::string_view view() const {
    return is_null() ? std::string_view() : std::string_view(reinterpret_cast<const char*>(data), size_t(size));
  }
};

// A missing column is null in every row.
struct ColumnView {
  const uint8_t* valid = nullptr;
  int64_t offset = 0;
  bool is_present = false;

  void view(const ArrowArray& array, int64_t parent_offset) {
    valid = static_cast<const uint8_t*>(array.buffers[0]);
    offset = parent_offset + array.offset;
    is_present = true;
  }
  bool is_null(int64_t row) const {
    if (!is_present) return true;
    const int64_t bit = offset + row;
    return valid != nullptr && (valid[bit / 8] >> (bit % 8) & 1) == 0;
  }
};

template <typename T>
struct NumberColumn : ColumnView {
  const T* values = nullptr;

  std::optional<int64_t> at(int64_t row) const {
    return is_null(row) ? std::nullopt : std::optional<int64_t>(values[offset + row]);
  }
};

struct TextColumn : ColumnView {
  const int32_t* offsets = nullptr;
  const uint8_t* bytes = nullptr;

  Text at(int64_t row) const {
    if (is_null(row)) return {};
    const int32_t start = offsets[offset + row];
    return {bytes + start, offsets[offset + row + 1] - start};
  }
};

struct MapColumn : ColumnView {
  const int32_t* offsets = nullptr;
  TextColumn names, values;

  // The range of a row's pairs in `names` and `values`.
  std::pair<int64_t, int64_t> range(int64_t row) const {
    if (is_null(row)) return {0, 0};
    return {offsets[offset + row], offsets[offset + row + 1]};
  }
};

// The values of an array without a check of its type. `offset` is that of the parent, here and below.
template <typename T>
NumberColumn<T> view_values(const ArrowArray& array, int64_t offset) {
  NumberColumn<T> column;
  column.view(array, offset);
  column.values = static_cast<const T*>(array.buffers[1]);
  return column;
}

// These throw std::invalid_argument for a column of another type.
NumberColumn<int32_t> view_int32(const ArrowSchema& schema, const ArrowArray& array, int64_t offset);
NumberColumn<int64_t> view_int64(const ArrowSchema& schema, const ArrowArray& array, int64_t offset);
TextColumn view_text(const ArrowSchema& schema, const ArrowArray& array, int64_t offset);
TextColumn view_binary(const ArrowSchema& schema, const ArrowArray& array, int64_t offset);
MapColumn view_map(const ArrowSchema& schema, const ArrowArray& array, int64_t offset);

// Throws std::invalid_argument for a schema of another type.
void expect_format(const ArrowSchema& schema, const char* format);

}  // namespace dledger
