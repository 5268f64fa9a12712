// Loads and stores of fixed byte orders, and a mapped file that can be truncated while it is read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace dledger {

inline uint32_t load_be32u(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof value);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap32(value);
#endif
  return value;
}

inline uint64_t load_be64u(const uint8_t* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof value);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

inline int32_t load_be32(const uint8_t* p) { return static_cast<int32_t>(load_be32u(p)); }
inline int64_t load_be64(const uint8_t* p) { return static_cast<int64_t>(load_be64u(p)); }
inline uint32_t load_be16(const uint8_t* p) { return (uint32_t{p[0]} << 8) | p[1]; }

inline void store_be32(uint8_t* p, uint32_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap32(value);
#endif
  std::memcpy(p, &value, sizeof value);
}

inline void store_be64(uint8_t* p, uint64_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  std::memcpy(p, &value, sizeof value);
}

inline uint64_t load_le64(const uint8_t* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

inline void store_le64(uint8_t* p, uint64_t value) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  std::memcpy(p, &value, sizeof value);
}

inline void store_le32(uint8_t* p, uint32_t value) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  value = __builtin_bswap32(value);
#endif
  std::memcpy(p, &value, sizeof value);
}

inline void store_be16(uint8_t* p, uint32_t value) {
  p[0] = static_cast<uint8_t>(value >> 8);
  p[1] = static_cast<uint8_t>(value);
}

// A file cannot be read, or the request does not fit it. Becomes errors.StoreError in Python.
struct StoreFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A read needs the bytes at `offset` of a file, which its partial copy does not have. Not a runtime_error, because
// those report problems of bytes that are there. Becomes segment_file.MissingBytes in Python.
struct MissingFault : std::exception {
  explicit MissingFault(int64_t at) : offset(at) {}
  const char* what() const noexcept override { return "bytes that a partial copy does not have"; }

  int64_t offset;
};

// A file that has bytes at `offset`, which cannot be read. Becomes UnreadableError in Python.
struct UnreadableFault : std::exception {
  UnreadableFault(std::string file, std::string why, int64_t at)
      : path(std::move(file)), reason(std::move(why)), offset(at) {}
  const char* what() const noexcept override { return reason.c_str(); }

  std::string path, reason;
  int64_t offset;
};

// The parts [from, to) of a file in a partial copy: ascending, disjoint, and whole pages.
using Extents = std::vector<std::pair<int64_t, int64_t>>;

// The file with a segment's bytes, or a partial copy of the same size.
struct SegmentBytes {
  std::string path;   // in error texts
  std::string local;  // the file to open
  bool is_partial = false;
  Extents extents = {};  // of a partial copy
};

// Readers load so many bytes at once with `populate`.
constexpr int64_t kPopulateBytes = 16 * 1024 * 1024;
constexpr int64_t kCacheLine = 64;

// A read-only mapping of a whole file. If a page cannot be read (the file was truncated, the disk failed), it and all
// pages after it read as zeros instead of raising SIGBUS, and `readable()` returns where the real bytes end. Missing
// parts of a partial copy also read as zeros; `readable()` then throws MissingFault, and nothing read so far is valid.
class MappedFile {
 public:
  // Throws StoreFault with the path and the reason.
  explicit MappedFile(const SegmentBytes& bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

  // The end of the real bytes: the mapped size, or less if the file shrank or could not be read. Throws MissingFault if
  // bytes were read that a partial copy does not have.
  int64_t readable();

  // Why bytes of the file cannot be read; empty if it has none after `readable()`.
  std::string failure() const;
  // Throws UnreadableFault if bytes of the file cannot be read.
  void check();

  // Loads the pages of [from, from + length) in one call, which is cheaper than a fault for every 16 pages.
  void populate(int64_t from, int64_t length) const;

  // Reads a byte of each page of [from, to). Returns whether all these bytes are the file's.
  bool load(int64_t from, int64_t to);

 private:
  void map(const SegmentBytes& bytes);

  std::string path_;
  bool is_partial_ = false;
  int fd_ = -1;
  int slot_ = -1;
  uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace dledger
