// Stands in for bytes.cpp: a mapped file would hide reads behind its end, up to the end of the page.
#pragma once

#include <cstdint>
#include <vector>

namespace dledger::fuzz {

// The file that every MappedFile maps. With `shrinks_to` at least 0, the file shrinks to so many bytes when `readable`
// is asked for the `shrinks_after`th time.
struct MemoryFile {
  std::vector<uint8_t> bytes;
  int64_t shrinks_to = -1;
  int shrinks_after = 0;
};

extern MemoryFile memory_file;

}  // namespace dledger::fuzz
