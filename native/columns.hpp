// Arrow columns that grow row by row and leave through the Arrow C Data
// Interface without a copy.
// https://arrow.apache.org/docs/format/CDataInterface.html
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "text.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};
}

namespace dledger {

// A copy without a call, for the many short texts of a row. The first and the
// last part may overlap.
inline void copy_inline(uint8_t* to, const uint8_t* from, size_t n) {
  const auto move = [&](auto part, size_t at) {
    std::memcpy(&part, from + at, sizeof part);
    std::memcpy(to + at, &part, sizeof part);
  };
  struct Line {
    uint64_t words[8];
  };
  struct Quarter {
    uint64_t words[2];
  };
  if (n >= sizeof(Quarter)) {
    size_t i = 0;
    for (; i + sizeof(Line) <= n; i += sizeof(Line)) move(Line{}, i);
    for (; i + sizeof(Quarter) <= n; i += sizeof(Quarter)) move(Quarter{}, i);
    move(Quarter{}, n - sizeof(Quarter));
  } else if (n >= 8) {
    move(uint64_t{}, 0);
    move(uint64_t{}, n - 8);
  } else if (n >= 4) {
    move(uint32_t{}, 0);
    move(uint32_t{}, n - 4);
  } else {
    for (size_t i = 0; i < n; i++) to[i] = from[i];
  }
}

// A copy around the cache, for bodies: a batch of them is larger than the
// cache, and the lines need not be fetched before they are overwritten. Call
// `finish_streaming` before another thread reads the copy.
inline void copy_streaming(uint8_t* to, const uint8_t* from, size_t n) {
#if defined(__SSE2__)
  for (; n > 0 && reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) != 0; n--) *to++ = *from++;
  for (; n >= 64; n -= 64, to += 64, from += 64) {
    for (int i = 0; i < 64; i += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
  }
#endif
  copy_inline(to, from, n);
}

inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Growable memory, aligned to 64 bytes. Freed memory goes to a small pool: the
// kernel's zeroing of fresh pages would cost as much as filling them.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  // Memory for `more` bytes at the end, which the caller must fill.
  uint8_t* extend(size_t more) {
    if (size_ + more > capacity_) grow(size_ + more);
    uint8_t* const tail = data_ + size_;
    size_ += more;
    return tail;
  }
  void reserve(size_t capacity) {
    if (capacity > capacity_) grow(capacity);
  }
  void append(const void* p, size_t n) {
    if (n > 0) copy_inline(extend(n), static_cast<const uint8_t*>(p), n);
  }
  size_t capacity() const { return capacity_; }
  // Sets the size, where the caller has filled the bytes up to it.
  void resize(size_t size) { size_ = size; }

 private:
  void swap(Buffer& other) noexcept;
  void grow(size_t needed);

  uint8_t* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

enum class Type { Int32, Int64, Timestamp, Bool, String, Binary, Map };

class TextAppender;

// One column. A chunk of rows is appended at a time: first its values, then its
// validity.
class Column {
 public:
  Column(std::string name, Type type);

  Type type() const { return type_; }
  const std::string& name() const { return name_; }
  int64_t length() const { return length_; }

  // Reserving the sizes of the last batch avoids that the column grows step by
  // step.
  struct Sizes {
    size_t values = 0, offsets = 0;
    std::vector<Sizes> children = {};
  };
  Sizes sizes() const;
  void reserve(const Sizes& sizes);

  // Memory for the fixed-width values of `rows` rows.
  template <typename T>
  T* values(int64_t rows) {
    return reinterpret_cast<T*>(values_.extend(sizeof(T) * static_cast<size_t>(rows)));
  }
  void append_bool(bool value);
  void append_body(const uint8_t* p, size_t n) {
    if (n > 0) copy_streaming(values_.extend(n), p, n);
    append_nothing();
  }
  void append_repeated(const std::string& text, int64_t rows);
  void append_nothing() { append_offset(values_.size()); }

  // Map columns: the columns of keys and values, which get the pairs of a row,
  // and then the number of these pairs.
  Column& keys() { return *children_[0]; }
  Column& items() { return *children_[1]; }
  void close_map(int64_t pairs) {
    pairs_ += pairs;
    append_offset(static_cast<size_t>(pairs_));
  }

  // Closes a chunk of `rows` rows. valid[i] is 0 for a null; without `valid`
  // all are valid.
  void close_chunk(int64_t rows, const uint8_t* valid);

  void export_schema(ArrowSchema* out) const;
  void export_array(ArrowArray* out);  // moves the data out

 private:
  friend class TextAppender;

  void append_offset(size_t offset) {
    const auto value = static_cast<int32_t>(offset);
    std::memcpy(offsets_.extend(sizeof value), &value, sizeof value);
  }
  void append_validity(int64_t rows, const uint8_t* valid);

  std::string name_;
  Type type_;
  Buffer values_, offsets_, validity_;
  int64_t length_ = 0, nulls_ = 0, bools_ = 0, pairs_ = 0;
  std::vector<std::unique_ptr<Column>> children_;
};

// Appends `rows` texts to a column, with its memory in local variables; it must
// get all of them.
class TextAppender {
 public:
  TextAppender(Column& column, int64_t rows)
      : values_(column.values_),
        offset_(column.offsets_.extend(sizeof(int32_t) * static_cast<size_t>(rows))),
        data_(values_.data()),
        size_(values_.size()),
        capacity_(values_.capacity()) {}
  ~TextAppender() { values_.resize(size_); }
  TextAppender(const TextAppender&) = delete;
  TextAppender& operator=(const TextAppender&) = delete;

  void append(const TextBytes& text) {
    if (size_ + text.size + kShort > capacity_) grow(text.size + kShort);
    if (text.size <= kShort && text.readable >= kShort) {
      std::memcpy(data_ + size_, text.p, kShort);  // what is too much is overwritten
    } else {
      copy_inline(data_ + size_, text.p, text.size);
    }
    size_ += text.size;
    append_offset(size_);
  }

  // Appends `count` texts that stand one after the other at p, with their ends. kTextPadding bytes more may be read.
  void append_all(const uint8_t* p, size_t size, const int32_t* ends, size_t count) {
    if (size_ + size + kShort > capacity_) grow(size + kShort);
    for (size_t i = 0; i < size; i += kShort) std::memcpy(data_ + size_ + i, p + i, kShort);
    for (size_t i = 0; i < count; i++) append_offset(size_ + static_cast<size_t>(ends[i]));
    size_ += size;
  }

  // Appends `count` disjoint parts of the `size` bytes at p. kTextPadding bytes more may be read.
  void append_parts(const uint8_t* p, size_t size, const uint16_t* at, const uint16_t* sizes, size_t count) {
    if (size_ + size + kShort > capacity_) grow(size + kShort);
    uint8_t* to = data_ + size_;
    for (size_t i = 0; i < count; i++) {
      const uint8_t* const from = p + at[i];
      std::memcpy(to, from, kShort);
      if (sizes[i] > kShort) copy_inline(to, from, sizes[i]);
      to += sizes[i];
      append_offset(static_cast<size_t>(to - data_));
    }
    size_ = static_cast<size_t>(to - data_);
  }

 private:
  static constexpr size_t kShort = 32;

  void append_offset(size_t end) {
    const auto offset = static_cast<int32_t>(end);
    std::memcpy(offset_, &offset, sizeof offset);
    offset_ += sizeof offset;
  }

  void grow(size_t more) {
    values_.resize(size_);
    values_.reserve(size_ + more);
    data_ = values_.data();
    capacity_ = values_.capacity();
  }

  Buffer& values_;
  uint8_t *offset_, *data_;
  size_t size_, capacity_;
};

// A finished record batch: a struct array of its columns.
void export_schema(const std::vector<Column>& columns, ArrowSchema* out);
void export_array(std::vector<Column>& columns, int64_t rows, ArrowArray* out);

}  // namespace dledger
