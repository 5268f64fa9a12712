#include "memory_file.hpp"

#include <algorithm>
#include <cstring>

#include "bytes.hpp"

namespace dledger {

fuzz::MemoryFile fuzz::memory_file;

MappedFile::MappedFile(const SegmentBytes& from, bool) : path_(from.path) {
  const std::vector<uint8_t>& bytes = fuzz::memory_file.bytes;
  size_ = static_cast<int64_t>(bytes.size());
  if (size_ == 0) return;
  auto* const data = new uint8_t[bytes.size()];
  std::memcpy(data, bytes.data(), bytes.size());
  windows_.push_back({{0, size_, size_ + 1, data}, 0, 0});
}

MappedFile::~MappedFile() {
  for (const Mapping& mapping : windows_) delete[] mapping.window.data;
}

Window MappedFile::window(int64_t, int64_t) { return windows_.empty() ? Window{} : windows_[0].window; }

int64_t MappedFile::readable() {
  fuzz::MemoryFile& file = fuzz::memory_file;
  if (file.shrinks_to < 0 || file.shrinks_to >= size_) return size_;
  if (file.shrinks_after > 0) {
    file.shrinks_after--;
    return size_;
  }
  uint8_t* const data = windows_[0].window.data;
  std::fill(data + file.shrinks_to, data + size_, uint8_t{0});
  return file.shrinks_to;
}

int MappedFile::failure() const { return 0; }

int64_t MappedFile::populate(int64_t, int64_t length) { return std::max<int64_t>(length, 1); }

}  // namespace dledger
