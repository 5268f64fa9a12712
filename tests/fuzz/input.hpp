// What a target is given: a few options, then the bytes of a segment. `corpus.py` writes the same layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "walk.hpp"

namespace dledger::fuzz {

constexpr size_t kOptionBytes = 32;
constexpr size_t kMaxInputSize = 128 * 1024;

// A sequence of numbers that its seed decides.
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
  kTrustPlace = 2,  // check_pos is false
  kSkipCrc = 4,
  kHasCommitted = 8,
  kHasBefore = 16,
  kShrinks = 32,
};

// Megabytes are too slow to be mutated: they are made of one frame when a target runs. A log or a body longer than the
// 4 MiB of DLedger's longest entry, one of more bytes than a boundary is proven by, or zeros.
enum class Stretch { None, Chain, LongChain, Body, Zeros };

// The options, by their place in the input.
struct Options {
  uint8_t flags = 0;
  uint8_t mode = 0;
  uint8_t filter = 0;       // which condition; its values come from a row
  uint8_t filter_row = 0;   // as a share of the rows
  uint8_t batch_rows = 0;   // by choice
  uint8_t batch_bytes = 0;  // by choice
  uint8_t target = 0;       // bytes of a split, by choice
  uint8_t range = 0;        // where a second range begins and ends, as shares of the rows
  uint8_t missing = 0;      // bytes that the file is shorter than its segment, by choice
  uint8_t stretch = 0;      // mostly none
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

// What looks like the frames of a walk over the bytes, wherever they say that they stand.
std::vector<Piece> frames_in(const uint8_t* data, size_t size, bool is_dledger);

// Makes frames fit again: sizes, positions, mostly indices and the lengths and CRCs of messages.
void mend(uint8_t* data, size_t size, bool is_dledger, int64_t base, Random& random);
void mend_message(uint8_t* data, size_t size, int64_t pos, Random& random);

// Changes the segment's structure or its bytes, mostly so that it stays a log. Gives the new size of the whole input.
size_t mutate_segment(uint8_t* data, size_t size, size_t max_size, uint64_t seed);

// The bytes of the segment that the input describes, in memory of exactly their size.
std::vector<uint8_t> segment_bytes(const Options& options, const uint8_t* data, size_t size);

// Ends the process, naming what does not hold.
[[noreturn]] void fail(const std::string& what);
inline void check(bool holds, const char* what) {
  if (!holds) fail(what);
}

// Fails where an input took more than `seconds` of processor time, however busy the machine is.
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
