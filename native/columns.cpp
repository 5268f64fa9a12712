#include "columns.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <new>

#include "bytes.hpp"

namespace dledger {
namespace {

constexpr size_t kMinCapacity = 4096;
constexpr size_t kHugePage = 2 * 1024 * 1024;
// As much as a reader with threads has read ahead.
constexpr size_t kPoolBytes = 256 * 1024 * 1024;
constexpr int64_t kNullable = 2;  // ARROW_FLAG_NULLABLE

// Free memory by size class (powers of two from kMinCapacity).
class Pool {
 public:
  uint8_t* take(size_t capacity) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::vector<uint8_t*>& free = free_[index(capacity)];
      if (!free.empty()) {
        uint8_t* const memory = free.back();
        free.pop_back();
        pooled_ -= capacity;
        return memory;
      }
    }
    void* memory = nullptr;
    const size_t alignment = capacity >= kHugePage ? kHugePage : 64;
    if (posix_memalign(&memory, alignment, capacity) != 0) {
      // A limit of the address space counts the free memory of other sizes, too.
      free_all();
      if (posix_memalign(&memory, alignment, capacity) != 0) throw std::bad_alloc();
    }
#ifdef MADV_HUGEPAGE
    if (alignment == kHugePage) madvise(memory, capacity, MADV_HUGEPAGE);
#endif
    return static_cast<uint8_t*>(memory);
  }

  void give(uint8_t* memory, size_t capacity) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pooled_ + capacity <= kPoolBytes) {
      try {
        free_[index(capacity)].push_back(memory);
        pooled_ += capacity;
        return;
      } catch (const std::bad_alloc&) {
      }
    }
    std::free(memory);
  }

  void free_all() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (std::vector<uint8_t*>& free : free_) {
      for (uint8_t* const memory : free) std::free(memory);
      free.clear();
    }
    pooled_ = 0;
  }

  static Pool& shared() {
    static Pool* const pool = make();  // never freed: Python may still have batches at exit
    return *pool;
  }

 private:
  static Pool* make() {
    // Otherwise a child that is forked while another thread has the lock could
    // never take it.
    pthread_atfork([] { shared().mutex_.lock(); }, [] { shared().mutex_.unlock(); }, [] { shared().mutex_.unlock(); });
    return new Pool;
  }

  static size_t index(size_t capacity) { return static_cast<size_t>(__builtin_ctzll(capacity)); }

  std::mutex mutex_;
  std::array<std::vector<uint8_t*>, 64> free_;
  size_t pooled_ = 0;
};

}  // namespace

Buffer::~Buffer() {
  if (data_ != nullptr) Pool::shared().give(data_, capacity_);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
}

void Buffer::grow(size_t needed) {
  size_t capacity = std::max(capacity_ * 2, kMinCapacity);
  while (capacity < needed) capacity *= 2;
  uint8_t* const bigger = Pool::shared().take(capacity);
  if (size_ > 0) std::memcpy(bigger, data_, size_);
  if (data_ != nullptr) Pool::shared().give(data_, capacity_);
  data_ = bigger;
  capacity_ = capacity;
}

Column::Column(std::string name, Type type) : name_(std::move(name)), type_(type) {
  if (type == Type::String || type == Type::Binary || type == Type::Map) append_offset(0);
  if (type == Type::Map) {
    children_.push_back(std::make_unique<Column>("key", Type::String));
    children_.push_back(std::make_unique<Column>("value", Type::String));
  }
}

Column::Sizes Column::sizes() const {
  Sizes sizes{values_.size(), offsets_.size()};
  for (const auto& child : children_) sizes.children.push_back(child->sizes());
  return sizes;
}

void Column::reserve(const Sizes& sizes) {
  values_.reserve(sizes.values);
  offsets_.reserve(sizes.offsets);
  for (size_t i = 0; i < std::min(children_.size(), sizes.children.size()); i++) {
    children_[i]->reserve(sizes.children[i]);
  }
}

void Column::append_bool(bool value) {
  if (bools_ % 8 == 0) *values_.extend(1) = 0;
  if (value) values_.data()[bools_ / 8] |= static_cast<uint8_t>(1u << (bools_ % 8));
  bools_++;
}

void Column::append_repeated(const std::string& text, int64_t rows) {
  size_t end = values_.size();
  const size_t all = text.size() * static_cast<size_t>(rows);
  uint8_t* const to = values_.extend(all);
  if (all > 0) std::memcpy(to, text.data(), text.size());
  for (size_t done = text.size(); done < all; done *= 2) std::memcpy(to + done, to, std::min(done, all - done));
  auto* const offsets = reinterpret_cast<int32_t*>(offsets_.extend(sizeof(int32_t) * static_cast<size_t>(rows)));
  for (int64_t i = 0; i < rows; i++) {
    end += text.size();
    offsets[i] = static_cast<int32_t>(end);
  }
}

void Column::close_chunk(int64_t rows, const uint8_t* valid) {
  append_validity(rows, valid);
  length_ += rows;
}

void Column::append_validity(int64_t rows, const uint8_t* valid) {
  const bool any_null = valid != nullptr && std::memchr(valid, 0, static_cast<size_t>(rows)) != nullptr;
  if (!any_null && nulls_ == 0) return;
  const auto bytes = static_cast<size_t>((length_ + rows + 7) / 8);
  if (nulls_ == 0) {
    // The first null: everything before it was valid.
    const auto before = static_cast<size_t>((length_ + 7) / 8);
    if (before > 0) std::memset(validity_.extend(before), 0xFF, before);
  }
  if (bytes > validity_.size()) {
    const size_t more = bytes - validity_.size();
    std::memset(validity_.extend(more), 0, more);
  }
  uint8_t* const bits = validity_.data();
  int64_t i = 0;
  for (; valid != nullptr && length_ % 8 == 0 && i + 8 <= rows; i += 8) {
    // The lowest bits of eight bytes, which are 0 or 1, become the eight bits
    // of one.
    const auto eight = static_cast<uint8_t>(load_le64(valid + i) * 0x0102040810204080u >> 56);
    bits[(length_ + i) / 8] = eight;
    nulls_ += 8 - __builtin_popcount(eight);
  }
  for (; i < rows; i++) {
    const int64_t row = length_ + i;
    const auto bit = static_cast<uint8_t>(1u << (row % 8));
    if (valid == nullptr || valid[i] != 0) {
      bits[row / 8] |= bit;
    } else {
      bits[row / 8] &= static_cast<uint8_t>(~bit);
      nulls_++;
    }
  }
}

namespace {

// Owns what an exported schema points to.
struct SchemaHolder {
  std::string name;
  std::vector<ArrowSchema> children;
  std::vector<ArrowSchema*> pointers;
};

void release_schema(ArrowSchema* schema) {
  auto* const holder = static_cast<SchemaHolder*>(schema->private_data);
  for (ArrowSchema* child : holder->pointers) {
    if (child->release != nullptr) child->release(child);
  }
  schema->release = nullptr;
  delete holder;
}

void fill_schema(ArrowSchema* out, const char* format, const std::string& name, int64_t flags,
                 std::vector<ArrowSchema> children) {
  auto holder = std::make_unique<SchemaHolder>();
  holder->name = name;
  holder->children = std::move(children);
  for (ArrowSchema& child : holder->children) holder->pointers.push_back(&child);
  *out = ArrowSchema{};
  out->format = format;
  out->name = holder->name.c_str();
  out->flags = flags;
  out->n_children = static_cast<int64_t>(holder->pointers.size());
  out->children = holder->pointers.data();
  out->release = release_schema;
  out->private_data = holder.release();
}

const char* format_of(Type type) {
  switch (type) {
    case Type::Int32:
      return "i";
    case Type::Int64:
      return "l";
    case Type::Timestamp:
      return "tsu:UTC";
    case Type::Bool:
      return "b";
    case Type::String:
      return "u";
    case Type::Binary:
      return "z";
    case Type::Map:
      return "+m";
  }
  return "";
}

// Owns the memory of an exported array.
struct ArrayHolder {
  std::vector<Buffer> memory;
  std::vector<const void*> buffers;
  std::vector<ArrowArray> children;
  std::vector<ArrowArray*> pointers;
};

void release_array(ArrowArray* array) {
  auto* const holder = static_cast<ArrayHolder*>(array->private_data);
  for (ArrowArray* child : holder->pointers) {
    if (child->release != nullptr) child->release(child);
  }
  array->release = nullptr;
  delete holder;
}

void fill_array(ArrowArray* out, int64_t length, int64_t nulls, std::vector<Buffer> memory,
                std::vector<ArrowArray> children) {
  auto holder = std::make_unique<ArrayHolder>();
  holder->memory = std::move(memory);
  holder->children = std::move(children);
  for (const Buffer& buffer : holder->memory) holder->buffers.push_back(buffer.data());
  for (ArrowArray& child : holder->children) holder->pointers.push_back(&child);
  *out = ArrowArray{};
  out->length = length;
  out->null_count = nulls;
  out->n_buffers = static_cast<int64_t>(holder->buffers.size());
  out->n_children = static_cast<int64_t>(holder->pointers.size());
  out->buffers = holder->buffers.data();
  out->children = holder->pointers.data();
  out->release = release_array;
  out->private_data = holder.release();
}

template <typename... Buffers>
std::vector<Buffer> list(Buffers&&... buffers) {
  std::vector<Buffer> all;
  (all.push_back(std::move(buffers)), ...);
  return all;
}

}  // namespace

void Column::export_schema(ArrowSchema* out) const {
  std::vector<ArrowSchema> children;
  if (type_ == Type::Map) {
    std::vector<ArrowSchema> pair(2);
    fill_schema(&pair[0], "u", "key", 0, {});
    fill_schema(&pair[1], "u", "value", kNullable, {});
    children.resize(1);
    fill_schema(&children[0], "+s", "entries", 0, std::move(pair));
  }
  fill_schema(out, format_of(type_), name_, kNullable, std::move(children));
}

void Column::export_array(ArrowArray* out) {
  std::vector<ArrowArray> children;
  if (type_ == Type::Map) {
    std::vector<ArrowArray> pair(2);
    for (size_t i = 0; i < 2; i++) {
      children_[i]->length_ = pairs_;
      children_[i]->export_array(&pair[i]);
    }
    children.resize(1);
    fill_array(&children[0], pairs_, 0, list(Buffer()), std::move(pair));
  }
  // Arrow needs a buffer even without bytes.
  if (values_.data() == nullptr) values_.extend(1);
  if (type_ == Type::Map) {
    fill_array(out, length_, nulls_, list(std::move(validity_), std::move(offsets_)), std::move(children));
  } else if (type_ == Type::String || type_ == Type::Binary) {
    fill_array(out, length_, nulls_, list(std::move(validity_), std::move(offsets_), std::move(values_)), {});
  } else {
    fill_array(out, length_, nulls_, list(std::move(validity_), std::move(values_)), {});
  }
}

void export_schema(const std::vector<Column>& columns, ArrowSchema* out) {
  std::vector<ArrowSchema> children(columns.size());
  for (size_t i = 0; i < columns.size(); i++) columns[i].export_schema(&children[i]);
  fill_schema(out, "+s", "", 0, std::move(children));
}

void export_array(std::vector<Column>& columns, int64_t rows, ArrowArray* out) {
  std::vector<ArrowArray> children(columns.size());
  for (size_t i = 0; i < columns.size(); i++) columns[i].export_array(&children[i]);
  fill_array(out, rows, 0, list(Buffer()), std::move(children));
}

}  // namespace dledger
