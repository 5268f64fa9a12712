// The minimal work of a reader, for comparison: follows the headers of a mapped file, or reads the file in blocks.
// Commands on standard input, one JSON object for each on standard output:
//   walk   follow the headers, columns discarded   (mapped once, pages touched before: no fault is timed)
//   map    the same with mapping and unmapping timed
//   read   pread in blocks of 1 MiB into one buffer

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

namespace {

template <class T>
T big_endian(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return sizeof value == 4 ? static_cast<T>(__builtin_bswap32(static_cast<uint32_t>(value)))
                           : static_cast<T>(__builtin_bswap64(static_cast<uint64_t>(value)));
}

const uint8_t* map(int fd, size_t size) {
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<const uint8_t*>(data);
}

uint64_t checksum = 0;  // keeps the compiler from dropping the loops

uint64_t walk(const uint8_t* data, size_t size) {
  uint64_t entries = 0;
  for (size_t p = 0; p + 48 <= size;) {
    const uint8_t* header = data + p;
    int32_t length = big_endian<int32_t>(header + 4);
    if (big_endian<int32_t>(header) != 1 || length < 48) break;
    checksum += static_cast<uint64_t>(big_endian<int64_t>(header + 8) + big_endian<int64_t>(header + 16) +
                                      big_endian<int64_t>(header + 24) + big_endian<int32_t>(header + 44));
    p += static_cast<size_t>(length);
    ++entries;
  }
  return entries;
}

uint64_t map_and_walk(int fd, size_t size) {
  const uint8_t* data = map(fd, size);
  if (data == nullptr) return 0;
  uint64_t entries = walk(data, size);
  munmap(const_cast<uint8_t*>(data), size);
  return entries;
}

uint64_t read_blocks(int fd, std::vector<uint8_t>& block) {
  uint64_t bytes = 0;
  ssize_t n;
  while ((n = pread(fd, block.data(), block.size(), static_cast<off_t>(bytes))) > 0) {
    bytes += static_cast<uint64_t>(n);
    checksum += block[0];
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int fd = open(argv[1], O_RDONLY);
  struct stat info{};
  if (fd < 0 || fstat(fd, &info) != 0) return 1;
  size_t size = static_cast<size_t>(info.st_size);
  const uint8_t* data = map(fd, size);
  if (data == nullptr) return 1;
  std::vector<uint8_t> block(1 << 20);
  std::printf("{\"entries\": %llu}\n", static_cast<unsigned long long>(walk(data, size)));
  std::fflush(stdout);
  for (std::string command; std::getline(std::cin, command);) {
    auto start = std::chrono::steady_clock::now();
    uint64_t count = command == "read"  ? read_blocks(fd, block)
                     : command == "map" ? map_and_walk(fd, size)
                                        : walk(data, size);
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("{\"seconds\": %.6f, \"count\": %llu}\n", seconds, static_cast<unsigned long long>(count));
    std::fflush(stdout);
  }
  return checksum == 42 ? 3 : 0;
}
