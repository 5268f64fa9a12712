// Loads and stores of fixed byte orders, and a mapped file that can be truncated while it is read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace dledger {

template <typename T>
T reversed(T value) {
  if constexpr (sizeof value == 2) return __builtin_bswap16(value);
  if constexpr (sizeof value == 4) return __builtin_bswap32(value);
  if constexpr (sizeof value == 8) return __builtin_bswap64(value);
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
constexpr bool kIsLittleEndian = true;
#else
constexpr bool kIsLittleEndian = false;
#endif

template <typename T>
T load_be(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return kIsLittleEndian ? reversed(value) : value;
}

template <typename T>
void store(uint8_t* p, T value, bool is_reversed) {
  if (is_reversed) value = reversed(value);
  std::memcpy(p, &value, sizeof value);
}

inline uint32_t load_be32u(const uint8_t* p) { return load_be<uint32_t>(p); }
inline uint64_t load_be64u(const uint8_t* p) { return load_be<uint64_t>(p); }
inline int32_t load_be32(const uint8_t* p) { return static_cast<int32_t>(load_be32u(p)); }
inline int64_t load_be64(const uint8_t* p) { return static_cast<int64_t>(load_be64u(p)); }
inline uint32_t load_be16(const uint8_t* p) { return load_be<uint16_t>(p); }
inline uint64_t load_le64(const uint8_t* p) { return reversed(load_be64u(p)); }

inline void store_be16(uint8_t* p, uint32_t value) { store(p, static_cast<uint16_t>(value), kIsLittleEndian); }
inline void store_be32(uint8_t* p, uint32_t value) { store(p, value, kIsLittleEndian); }
inline void store_be64(uint8_t* p, uint64_t value) { store(p, value, kIsLittleEndian); }
inline void store_le32(uint8_t* p, uint32_t value) { store(p, value, !kIsLittleEndian); }
inline void store_le64(uint8_t* p, uint64_t value) { store(p, value, !kIsLittleEndian); }

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

// A mapped part of a file: `size` bytes from offset `begin` on. From each of its first `reach` offsets, kOverlap bytes
// are mapped, or all up to the end of the file.
struct Window {
  int64_t begin = 0, size = 0, reach = 1;
  uint8_t* data = nullptr;
};

// More bytes than any entry or closing blank has, and than a search reads after a position.
constexpr int64_t kOverlap = 4 * 1024 * 1024 + 64 * 1024;
// The process may have little address space.
constexpr int64_t kWindowBytes = 8 * 1024 * 1024;

// A read-only file, mapped as a whole, which is up to three times as fast as windows, or in windows where the address
// space is limited. If a page cannot be read (the file was truncated, the disk failed), it and all pages after it read
// as zeros instead of raising SIGBUS, and `readable()` returns where the real bytes end. Missing parts of a partial
// copy also read as zeros; `readable()` then throws MissingFault, and nothing read so far is valid.
class MappedFile {
 public:
  // With `is_whole`, the file is always mapped as a whole. Throws StoreFault with the path and the reason.
  explicit MappedFile(const SegmentBytes& bytes, bool is_whole = false);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // The first byte; for files that are mapped as a whole.
  const uint8_t* data() { return window(0, 0).data; }
  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

  // A window with the bytes [offset, offset + length). It stays mapped while kMinWindows others are used, and while
  // the file is held. Throws StoreFault if it cannot be mapped.
  Window window(int64_t offset, int64_t length);
  // Until `hold(false)`, all windows stay mapped.
  void hold(bool is_held) { is_held_ = is_held; }
  bool is_full() const { return windows_.size() >= kMaxWindows; }

  // The end of the real bytes: the file's size, or less if the file shrank or could not be read. Throws MissingFault if
  // bytes were read that a partial copy does not have.
  int64_t readable();

  // Why bytes of the file cannot be read, an error number; 0 if it has none after `readable()`.
  int failure() const;
  // Throws UnreadableFault if bytes of the file cannot be read.
  void check();

  // Loads pages from `from` on in one call, which is cheaper than a fault for every 16 pages. Returns how many of
  // `length` bytes are in the window; at least 1.
  int64_t populate(int64_t from, int64_t length);

  // Reads a byte of each page of [from, to). Returns whether all these bytes are the file's. For a whole file.
  bool load(int64_t from, int64_t to);

  // Whether the page of a byte is in memory, so that reading it needs no disk. For a whole file.
  bool is_loaded(int64_t at);

 private:
  struct Mapping {
    Window window;
    int slot;
    uint64_t used;
  };

  Mapping map(int64_t begin, int64_t size) const;
  void unmap(const Mapping& mapping);
  void unmap_oldest(size_t kept);
  int64_t fault() const;

  // Callers use up to four positions at the same time.
  static constexpr size_t kMaxWindows = 6, kMinWindows = 3;

  std::string path_;
  bool is_partial_ = false, is_whole_ = false, is_held_ = false;
  Extents extents_;
  int fd_ = -1;
  int64_t size_ = 0;
  int64_t fault_ = INT64_MAX;  // the first offset that could not be read in windows that are no longer mapped
  uint64_t uses_ = 0;
  std::vector<Mapping> windows_;
};

// Calls `walk` with the end of the file's real bytes. If the file shrank or failed meanwhile, the result may come from
// bytes that were never in it: then it calls `prepare` and `walk` again, with fewer bytes.
template <typename Walk, typename Prepare>
auto on_readable(MappedFile& file, Walk walk, Prepare prepare) {
  for (int64_t readable = file.readable();;) {
    std::optional<decltype(walk(readable))> result;
    try {
      result.emplace(walk(readable));
    } catch (const std::runtime_error&) {
      file.readable();  // throws MissingFault if the fault comes from bytes that a partial copy does not have
      throw;
    }
    const int64_t now = file.readable();
    if (now >= readable) return std::move(*result);
    readable = now;
    prepare();
  }
}

}  // namespace dledger
