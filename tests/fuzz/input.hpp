// The input of a target: a few options, then the bytes of a segment. `corpus.py` writes the same layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "walk.hpp"

namespace dledger::fuzz {

constexpr size_t kOptionBytes = 32;
constexpr size_t kMaxInputSize = 128 * 1024;

// Random numbers that depend on the seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;  // SplitMix64, Steele et al. 2014
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  size_t below(size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(next() % limit); }
  bool one_in(size_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

enum OptionFlag : uint8_t {
  kCommitLog = 1,
  kTrustPos = 2,  // check_pos is false
  kSkipCrc = 4,
  kHasCommitted = 8,
  kHasBefore = 16,
  kShrinks = 32,
};

// Megabytes are too slow to mutate, so a target makes them of one frame: a log or body above DLedger's 4 MiB, one above
// the window that proves a boundary, or zeros.
enum class Stretch { None, Chain, LongChain, Body, Zeros };

// The options, in their order in the input.
struct Options {
  uint8_t flags = 0;
  uint8_t mode = 0;
  uint8_t filter = 0;       // the condition; its values come from a row
  uint8_t filter_row = 0;   // as a share of the rows
  uint8_t batch_rows = 0;   // by choice
  uint8_t batch_bytes = 0;  // by choice
  uint8_t target = 0;       // bytes of a split, by choice
  uint8_t range = 0;        // start and end of a second range, as shares of the rows
  uint8_t missing = 0;      // missing bytes at the file's end, by choice
  uint8_t stretch = 0;      // usually none
  uint64_t columns = 0;     // 48 bits, one for each column
  int64_t base = 0;
  int64_t number = 0;  // an index: to seek, as committed bound, of the entry before the segment

  bool has(OptionFlag flag) const { return (flags & flag) != 0; }
  Stretch how_to_stretch() const;
  // The segment at the options' base, some bytes longer than its file.
  SegmentId segment(size_t file_size) const;
};

Options read_options(const uint8_t* data);
void write_options(const Options& options, uint8_t* data);

// Writes big-endian.
void store_be32(uint8_t* p, uint32_t value);
void store_be64(uint8_t* p, uint64_t value);

struct Piece {
  size_t at, size;
};

// Likely frames in a walk over the bytes, with any positions.
std::vector<Piece> frames_in(const uint8_t* data, size_t size, bool is_dledger);

// Corrects frames: sizes, positions, and usually indexes and the lengths and CRCs of messages.
void mend(uint8_t* data, size_t size, bool is_dledger, int64_t base, Random& random);
void mend_message(uint8_t* data, size_t size, int64_t pos, Random& random);

// Changes the segment's structure or bytes, usually so that it stays a log. Returns the new size of the input.
size_t mutate_segment(uint8_t* data, size_t size, size_t max_size, uint64_t seed);

// The bytes of the input's segment, in memory of exactly their size, so that ASan finds reads after the end.
std::vector<uint8_t> segment_bytes(const Options& options, const uint8_t* data, size_t size);

// Ends the process with the text if the condition is false.
[[noreturn]] void fail(const std::string& what);
inline void check(bool holds, const char* what) {
  if (!holds) fail(what);
}

// Fails if an input takes more than `seconds` of processor time.
class TimeLimit {
 public:
  explicit TimeLimit(double seconds);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  double end_;
};

}  // namespace dledger::fuzz

extern "C" {
// libFuzzer's own mutation, or the standalone driver's.
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed);
}
