#include "json_lines.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "bytes.hpp"
#include "check.hpp"
#include "text.hpp"

namespace dledger {
namespace {

constexpr size_t kPart = 4096;        // bytes of a text between two checks of the buffer
constexpr size_t kMaxEscapeSize = 6;  // of a byte
constexpr size_t kMaxNumberSize = 20;
constexpr size_t kTimeSize = 26;
constexpr int64_t kMillisecondsOfDay = 24 * 60 * 60 * 1000;
constexpr char kHexDigits[] = "0123456789abcdef";
constexpr char kBase64Digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

uint8_t* put_char(uint8_t* to, char c) {
  *to = static_cast<uint8_t>(c);
  return to + 1;
}

uint8_t* put_chars(uint8_t* to, std::string_view text) {
  std::memcpy(to, text.data(), text.size());
  return to + text.size();
}

uint8_t* put_hex(uint8_t* to, uint32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) to = put_char(to, kHexDigits[value >> shift & 0xF]);
  return to;
}

// The last `digits` decimal digits.
uint8_t* put_digits(uint8_t* to, uint32_t value, int digits) {
  for (int i = digits - 1; i >= 0; i--, value /= 10) to[i] = static_cast<uint8_t>('0' + value % 10);
  return to + digits;
}

bool is_plain(uint8_t byte) { return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\'; }

// Whether all eight bytes are plain.
bool are_plain(uint64_t word) {
  constexpr uint64_t kOnes = 0x0101010101010101u, kTops = 0x8080808080808080u;
  const auto zeros = [](uint64_t of) { return (of - kOnes) & ~of; };  // the top bit of a byte that is 0
  const uint64_t low = (word - 0x20 * kOnes) & ~word;
  const uint64_t odd = word | low | zeros(word ^ '"' * kOnes) | zeros(word ^ '\\' * kOnes) | zeros(word ^ 0x7F * kOnes);
  return (odd & kTops) == 0;
}

// Characters beyond ASCII that control a terminal: control characters, line separators, invisible characters, and
// changes of the text's direction.
bool is_control(uint32_t character) {
  struct Range {
    uint32_t first, last;
  };
  constexpr Range kRanges[] = {{0x80, 0x9F},     {0xAD, 0xAD},     {0x61C, 0x61C},   {0x200B, 0x200F},
                               {0x2028, 0x202E}, {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [&](const Range& range) { return character >= range.first && character <= range.last; });
}

// The character of a valid UTF-8 sequence of this length.
uint32_t character_at(const uint8_t* p, int length) {
  uint32_t character = p[0] & (0xFFu >> (length + 1));
  for (int i = 1; i < length; i++) character = character << 6 | (p[i] & 0x3Fu);
  return character;
}

uint8_t* put_unicode_escape(uint8_t* to, uint32_t character) { return put_hex(put_chars(to, "\\u"), character, 4); }

uint8_t* put_ascii_escape(uint8_t* to, uint8_t c) {
  switch (c) {
    case '"':
      return put_chars(to, "\\\"");
    case '\\':
      return put_chars(to, "\\\\");
    case '\b':
      return put_chars(to, "\\b");
    case '\f':
      return put_chars(to, "\\f");
    case '\n':
      return put_chars(to, "\\n");
    case '\r':
      return put_chars(to, "\\r");
    case '\t':
      return put_chars(to, "\\t");
    default:
      return put_unicode_escape(to, c);
  }
}

// Writes the character at `from`, an invalid byte as a backslash, x and two digits. Moves both pointers.
void put_character(uint8_t*& to, const uint8_t*& from, const uint8_t* end) {
  if (is_plain(*from)) {
    *to++ = *from++;
    return;
  }
  if (*from < 0x80) {
    to = put_ascii_escape(to, *from++);
    return;
  }
  const int length = sequence_length(from, end);
  if (length < 0) {
    to = put_hex(put_chars(to, "\\\\x"), *from++, 2);
    return;
  }
  const uint32_t character = character_at(from, length);
  if (is_control(character)) {
    to = put_unicode_escape(to, character);
  } else {
    std::memcpy(to, from, static_cast<size_t>(length));
    to += length;
  }
  from += length;
}

void put_quoted(TextBuffer& text, const uint8_t* from, size_t size) {
  const uint8_t* const end = from + size;
  text.append("\"");
  while (from < end) {
    const uint8_t* const stop = from + std::min<size_t>(kPart, static_cast<size_t>(end - from));
    uint8_t* to = text.reserve(kMaxEscapeSize * (kPart + 4));  // the last character may extend past `stop`
    while (from < stop) {
      for (; stop - from >= 8; from += 8, to += 8) {
        const uint64_t word = load_le64(from);
        if (!are_plain(word)) break;
        store_le64(to, word);
      }
      for (int i = 0; i < 8 && from < stop; i++) put_character(to, from, end);
    }
    text.end_at(to);
  }
  text.append("\"");
}

// Two digits for each twelve bits.
using Base64Pairs = std::array<std::array<uint8_t, 2>, 4096>;

const Base64Pairs& base64_pairs() {
  static const Base64Pairs kPairs = [] {
    Base64Pairs pairs;
    for (size_t i = 0; i < pairs.size(); i++) {
      pairs[i] = {static_cast<uint8_t>(kBase64Digits[i >> 6]), static_cast<uint8_t>(kBase64Digits[i & 0x3F])};
    }
    return pairs;
  }();
  return kPairs;
}

void put_base64(TextBuffer& text, const uint8_t* from, size_t size) {
  const Base64Pairs& pairs = base64_pairs();
  uint8_t* to = text.reserve(4 * (size / 3 + 1) + 2);
  const auto put_pair = [&](uint64_t bits) {
    std::memcpy(to, pairs[bits & 0xFFF].data(), 2);
    to += 2;
  };
  *to++ = '"';
  for (; size >= 8; from += 6, size -= 6) {
    const uint64_t bits = load_be64u(from);
    for (const int shift : {52, 40, 28, 16}) put_pair(bits >> shift);
  }
  for (; size >= 3; from += 3, size -= 3) {
    const uint32_t bits = uint32_t{from[0]} << 16 | load_be16(from + 1);
    put_pair(bits >> 12);
    put_pair(bits);
  }
  if (size > 0) {
    const uint32_t bits = uint32_t{from[0]} << 16 | (size > 1 ? uint32_t{from[1]} << 8 : 0);
    put_pair(bits >> 12);
    put_pair(bits);
    std::fill(to - (3 - size), to, static_cast<uint8_t>('='));
  }
  *to++ = '"';
  text.end_at(to);
}

void put_hex_text(TextBuffer& text, const uint8_t* from, size_t size) {
  uint8_t* to = put_char(text.reserve(2 * size + 2), '"');
  for (size_t i = 0; i < size; i++) to = put_hex(to, from[i], 2);
  text.end_at(put_char(to, '"'));
}

struct Date {
  uint32_t year, month, day;
};

// The date in the proleptic Gregorian calendar, from year 1 on, by the days since 1970-01-01. Years begin in March
// here, so that the leap day is their last day.
Date date_of(int64_t days) {
  constexpr uint32_t kDaysBefore1970 = 719468;  // since 0000-03-01
  constexpr uint32_t kDaysOf400Years = 146097, kDaysOf100Years = 36524, kDaysOf4Years = 1461;
  const auto since = static_cast<uint32_t>(days + kDaysBefore1970);
  const uint32_t era = since / kDaysOf400Years, day_of_era = since % kDaysOf400Years;
  const uint32_t leap_days =
      day_of_era / (kDaysOf4Years - 1) - day_of_era / kDaysOf100Years + day_of_era / (kDaysOf400Years - 1);
  const uint32_t year_of_era = (day_of_era - leap_days) / 365;
  const uint32_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const uint32_t months = (5 * day_of_year + 2) / 153;  // since March; five of them have 153 days
  const uint32_t month = months < 10 ? months + 3 : months - 9;
  return {400 * era + year_of_era + (month <= 2 ? 1 : 0), month, day_of_year - (153 * months + 2) / 5 + 1};
}

uint8_t* put_time(uint8_t* to, int64_t milliseconds) {
  const int64_t since = milliseconds - kFirstMillisecond;
  const Date date = date_of((since / kMillisecondsOfDay) + kFirstMillisecond / kMillisecondsOfDay);
  const auto of_day = static_cast<uint32_t>(since % kMillisecondsOfDay);
  to = put_digits(put_char(to, '"'), date.year, 4);
  to = put_digits(put_char(to, '-'), date.month, 2);
  to = put_digits(put_char(to, '-'), date.day, 2);
  to = put_digits(put_char(to, 'T'), of_day / 3'600'000, 2);
  to = put_digits(put_char(to, ':'), of_day / 60'000 % 60, 2);
  to = put_digits(put_char(to, ':'), of_day / 1000 % 60, 2);
  to = put_digits(put_char(to, '.'), of_day % 1000, 3);
  return put_chars(to, "Z\"");
}

std::invalid_argument not_ascending() { return std::invalid_argument("the offsets of an Arrow array do not ascend"); }

// Checks the offsets of `count` values from `first` on, and the one after them.
void check_offsets(const int32_t* offsets, int64_t first, int64_t count) {
  if (count == 0) return;
  bool is_ascending = offsets[first] >= 0;
  for (int64_t i = first; i < first + count; i++) is_ascending &= offsets[i] <= offsets[i + 1];
  if (!is_ascending) throw not_ascending();
}

void check_offsets(const MapColumn& column, int64_t rows, const ArrowArray& array) {
  check_offsets(column.offsets, column.offset, rows);
  if (rows == 0) return;
  const int32_t first = column.offsets[column.offset];
  const int32_t count = column.offsets[column.offset + rows] - first;
  const TextColumn* const texts[] = {&column.names, &column.values};
  for (int i = 0; i < 2; i++) {
    const auto [offsets, offset] = std::pair(texts[i]->offsets, texts[i]->offset + first);
    check_offsets(offsets, offset, count);
    // More texts may follow these; Arrow checks only the end of the last one.
    const ArrowArray& all = *array.children[0]->children[i];
    if (count > 0 && offsets[offset + count] > offsets[all.offset + all.length]) throw not_ascending();
  }
}

}  // namespace

void TextBuffer::append(std::string_view text) { end_at(put_chars(reserve(text.size()), text)); }

JsonLines::JsonLines(const ArrowSchema& schema, const ArrowArray& batch, BytesForm form)
    : rows_(batch.length), form_(form) {
  expect_format(schema, "+s");
  for (int64_t i = 0; i < schema.n_children; i++) {
    const std::string_view name = schema.children[i]->name;
    text_.clear();
    text_.append(i > 0 ? ", " : "");
    put_quoted(text_, reinterpret_cast<const uint8_t*>(name.data()), name.size());
    text_.append(": ");
    fields_.push_back({std::string(text_.view()), view(*schema.children[i], *batch.children[i], batch.offset)});
    const Values& values = fields_.back().values;
    if (const auto* map = std::get_if<MapColumn>(&values)) check_offsets(*map, rows_, *batch.children[i]);
    if (const auto* text = std::get_if<TextColumn>(&values)) check_offsets(text->offsets, text->offset, rows_);
    if (const auto* data = std::get_if<BinaryColumn>(&values)) check_offsets(data->offsets, data->offset, rows_);
  }
}

JsonLines::Values JsonLines::view(const ArrowSchema& schema, const ArrowArray& array, int64_t offset) {
  const std::string_view format = schema.format;
  if (format == "i") return view_int32(schema, array, offset);
  if (format == "l") return view_int64(schema, array, offset);
  if (format == "u") return view_text(schema, array, offset);
  if (format == "z") return BinaryColumn{view_binary(schema, array, offset)};
  if (format == "+m") return view_map(schema, array, offset);
  if (format.substr(0, 4) == "tsu:") return TimeColumn{view_values<int64_t>(array, offset)};
  if (format != "b") throw std::invalid_argument("expected a column of the log table, found " + std::string(format));
  const NumberColumn<uint8_t> bits = view_values<uint8_t>(array, offset);
  return BoolColumn{bits, bits.values};
}

std::string_view JsonLines::next(size_t size) {
  text_.clear();
  while (row_ < rows_ && text_.view().size() < size) put_row(row_++);
  return text_.view();
}

void JsonLines::put_row(int64_t row) {
  text_.append("{");
  for (const Field& field : fields_) {
    text_.append(field.prefix);
    std::visit(
        [&](const auto& column) {
          if (column.is_null(row)) {
            text_.append("null");
          } else {
            put(column, row);
          }
        },
        field.values);
  }
  text_.append("}\n");
}

template <typename T>
void JsonLines::put(const NumberColumn<T>& column, int64_t row) {
  auto* const to = reinterpret_cast<char*>(text_.reserve(kMaxNumberSize));
  const char* const end = std::to_chars(to, to + kMaxNumberSize, column.values[column.offset + row]).ptr;
  text_.end_at(reinterpret_cast<const uint8_t*>(end));
}

void JsonLines::put(const BoolColumn& column, int64_t row) {
  const int64_t bit = column.offset + row;
  text_.append((column.bits[bit / 8] >> (bit % 8) & 1) != 0 ? "true" : "false");
}

void JsonLines::put(const TimeColumn& column, int64_t row) {
  const int64_t milliseconds = column.values[column.offset + row] / 1000;
  if (!is_representable(milliseconds)) {
    throw std::invalid_argument("expected a time within the years 1 to 9999, found " + std::to_string(milliseconds) +
                                " ms");
  }
  text_.end_at(put_time(text_.reserve(kTimeSize), milliseconds));
}

void JsonLines::put(const TextColumn& column, int64_t row) {
  const Text value = column.at(row);
  put_quoted(text_, value.data, static_cast<size_t>(value.size));
}

void JsonLines::put(const BinaryColumn& column, int64_t row) {
  const Text value = column.at(row);
  const auto size = static_cast<size_t>(value.size);
  switch (form_) {
    case BytesForm::Base64:
      return put_base64(text_, value.data, size);
    case BytesForm::Hex:
      return put_hex_text(text_, value.data, size);
    case BytesForm::Text:
      return put_quoted(text_, value.data, size);
  }
}

void JsonLines::put(const MapColumn& column, int64_t row) {
  const auto [first, last] = column.range(row);
  text_.append("{");
  for (int64_t i = first; i < last; i++) {
    if (i > first) text_.append(", ");
    put(column.names, i);
    text_.append(": ");
    if (column.values.is_null(i)) {
      text_.append("null");
    } else {
      put(column.values, i);
    }
  }
  text_.append("}");
}

}  // namespace dledger
