#include "memory_file.hpp"

#include <algorithm>
#include <cstring>

#include "bytes.hpp"

namespace dledger {

fuzz::MemoryFile fuzz::memory_file;

MappedFile::MappedFile(const SegmentBytes& from) : path_(from.path) {
  const std::vector<uint8_t>& bytes = fuzz::memory_file.bytes;
  size_ = static_cast<int64_t>(bytes.size());
  if (size_ == 0) return;
  data_ = new uint8_t[bytes.size()];
  std::memcpy(data_, bytes.data(), bytes.size());
}

MappedFile::~MappedFile() { delete[] data_; }

int64_t MappedFile::readable() {
  fuzz::MemoryFile& file = fuzz::memory_file;
  if (file.shrinks_to < 0 || file.shrinks_to >= size_) return size_;
  if (file.shrinks_after > 0) {
    file.shrinks_after--;
    return size_;
  }
  std::fill(data_ + file.shrinks_to, data_ + size_, uint8_t{0});
  return file.shrinks_to;
}

void MappedFile::populate(int64_t, int64_t) const {}

}  // namespace dledger
