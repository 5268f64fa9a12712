#include "rows.hpp"

#include <cstring>

#include "input.hpp"

namespace dledger::fuzz {
namespace {

template <typename T>
T at(const void* buffer, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(buffer) + static_cast<size_t>(i) * sizeof(T), sizeof value);
  return value;
}

bool bit(const void* buffer, int64_t i) { return (static_cast<const uint8_t*>(buffer)[i / 8] >> (i % 8) & 1) != 0; }

// The texts of a string or binary array.
std::vector<std::string> texts_of(const ArrowArray& array) {
  check(array.n_buffers == 3, "a text has three buffers");
  std::vector<std::string> texts;
  check(at<int32_t>(array.buffers[1], 0) == 0, "offsets begin at 0");
  for (int64_t i = 0; i < array.length; i++) {
    const auto begin = at<int32_t>(array.buffers[1], i), end = at<int32_t>(array.buffers[1], i + 1);
    check(begin <= end, "offsets ascend");
    // NOLINTNEXTLINE: reading the bytes finds a wrong offset
    texts.emplace_back(static_cast<const char*>(array.buffers[2]) + begin, static_cast<size_t>(end - begin));
  }
  return texts;
}

// A value of each row, including nulls; `get` returns the others.
template <typename Get>
std::vector<Value> values_of(const ArrowArray& array, Get get) {
  std::vector<Value> values(static_cast<size_t>(array.length));
  int64_t nulls = 0;
  for (int64_t i = 0; i < array.length; i++) {
    const bool is_null = array.buffers[0] != nullptr && !bit(array.buffers[0], i);
    nulls += is_null;
    if (is_null) continue;
    values[static_cast<size_t>(i)] = get(i);
    values[static_cast<size_t>(i)].is_null = false;
  }
  check(array.null_count == nulls, "the nulls are counted");
  return values;
}

Value number(int64_t value) {
  Value of;
  of.number = value;
  return of;
}

Value text(std::string value) {
  Value of;
  of.text = std::move(value);
  return of;
}

std::vector<Value> values_of(const ArrowArray& array, Type type) {
  switch (type) {
    case Type::Int32:
      return values_of(array, [&](int64_t i) { return number(at<int32_t>(array.buffers[1], i)); });
    case Type::Int64:
    case Type::Timestamp:
      return values_of(array, [&](int64_t i) { return number(at<int64_t>(array.buffers[1], i)); });
    case Type::Bool:
      return values_of(array, [&](int64_t i) { return number(bit(array.buffers[1], i)); });
    case Type::String:
    case Type::Binary: {
      const std::vector<std::string> texts = texts_of(array);
      return values_of(array, [&](int64_t i) {
        const std::string& found = texts[static_cast<size_t>(i)];
        check(type == Type::Binary || is_well_formed(found), "a text is UTF-8");
        return text(found);
      });
    }
    case Type::Map:
      break;
  }
  check(array.n_buffers == 2 && array.n_children == 1 && array.children[0]->n_children == 2, "a map has pairs");
  const std::vector<std::string> keys = texts_of(*array.children[0]->children[0]);
  const std::vector<std::string> items = texts_of(*array.children[0]->children[1]);
  check(keys.size() == items.size(), "each name has a value");
  return values_of(array, [&](int64_t i) {
    const auto begin = at<int32_t>(array.buffers[1], i), end = at<int32_t>(array.buffers[1], i + 1);
    check(begin <= end && static_cast<size_t>(end) <= keys.size(), "the pairs of a map are in its array");
    Value map;
    for (auto k = static_cast<size_t>(begin); k < static_cast<size_t>(end); k++) {
      check(is_well_formed(keys[k]) && is_well_formed(items[k]), "a property is UTF-8");
      map.pairs.emplace_back(keys[k], items[k]);
    }
    return map;
  });
}

}  // namespace

std::vector<Row> rows_of(Batch& batch) {
  ArrowSchema schema{};
  export_schema(batch.columns, &schema);
  check(schema.n_children == static_cast<int64_t>(batch.columns.size()), "the schema has each column");
  for (int64_t c = 0; c < schema.n_children; c++) {
    check(batch.columns[static_cast<size_t>(c)].name() == schema.children[c]->name, "the schema names each column");
    check(schema.children[c]->format[0] != '\0', "the schema has a type for each column");
  }
  schema.release(&schema);
  ArrowArray array{};
  std::vector<Type> types;
  for (const Column& column : batch.columns) {
    check(column.length() == batch.rows, "each column has each row");
    types.push_back(column.type());
  }
  export_array(batch.columns, batch.rows, &array);
  check(array.length == batch.rows && array.null_count == 0, "the batch has its rows");
  std::vector<Row> rows(static_cast<size_t>(batch.rows), Row(types.size()));
  for (size_t c = 0; c < types.size(); c++) {
    const ArrowArray& column = *array.children[c];
    check(column.length == batch.rows && column.offset == 0, "a column's array has each row");
    std::vector<Value> values = values_of(column, types[c]);
    for (size_t r = 0; r < rows.size(); r++) rows[r][c] = std::move(values[r]);
  }
  array.release(&array);
  return rows;
}

bool is_well_formed(const std::string& text) {
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* const end = p + text.size();
  while (p < end) {
    const uint8_t lead = *p++;
    if (lead < 0x80) continue;
    uint8_t low = 0x80, high = 0xBF;
    int more = 0;
    if (lead >= 0xC2 && lead <= 0xDF) more = 1;
    if (lead >= 0xE0 && lead <= 0xEF) more = 2;
    if (lead >= 0xF0 && lead <= 0xF4) more = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    if (more == 0 || end - p < more) return false;
    for (int i = 0; i < more; i++, low = 0x80, high = 0xBF) {
      if (*p < low || *p > high) return false;
      p++;
    }
  }
  return true;
}

}  // namespace dledger::fuzz
