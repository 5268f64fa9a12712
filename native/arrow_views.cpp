#include "arrow_views.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

namespace dledger {
namespace {

TextColumn view_bytes(const ArrowArray& array, int64_t offset) {
  TextColumn column;
  column.view(array, offset);
  column.offsets = static_cast<const int32_t*>(array.buffers[1]);
  column.bytes = static_cast<const uint8_t*>(array.buffers[2]);
  return column;
}

}  // namespace

void expect_format(const ArrowSchema& schema, const char* format) {
  if (std::strcmp(schema.format, format) == 0) return;
  throw std::invalid_argument(std::string("expected Arrow format ") + format + ", found " + schema.format);
}

NumberColumn<int32_t> view_int32(const ArrowSchema& schema, const ArrowArray& array, int64_t offset) {
  expect_format(schema, "i");
  return view_values<int32_t>(array, offset);
}

NumberColumn<int64_t> view_int64(const ArrowSchema& schema, const ArrowArray& array, int64_t offset) {
  expect_format(schema, "l");
  return view_values<int64_t>(array, offset);
}

TextColumn view_text(const ArrowSchema& schema, const ArrowArray& array, int64_t offset) {
  expect_format(schema, "u");
  return view_bytes(array, offset);
}

TextColumn view_binary(const ArrowSchema& schema, const ArrowArray& array, int64_t offset) {
  expect_format(schema, "z");
  return view_bytes(array, offset);
}

MapColumn view_map(const ArrowSchema& schema, const ArrowArray& array, int64_t offset) {
  expect_format(schema, "+m");
  const ArrowSchema& entries_schema = *schema.children[0];
  const ArrowArray& entries = *array.children[0];
  expect_format(entries_schema, "+s");
  MapColumn column;
  column.view(array, offset);
  column.offsets = static_cast<const int32_t*>(array.buffers[1]);
  column.names = view_text(*entries_schema.children[0], *entries.children[0], entries.offset);
  column.values = view_text(*entries_schema.children[1], *entries.children[1], entries.offset);
  return column;
}

}  // namespace dledger
