// Replaces bytes.cpp: a mapped file would hide reads after its end, up to the end of the page.
#pragma once

#include <cstdint>
#include <vector>

namespace dledger::fuzz {

// The file of every MappedFile. With `shrinks_to` at least 0, it shrinks to so many bytes at the `shrinks_after`th call
// of `readable`.
struct MemoryFile {
  std::vector<uint8_t> bytes;
  int64_t shrinks_to = -1;
  int shrinks_after = 0;
};

extern MemoryFile memory_file;

}  // namespace dledger::fuzz
