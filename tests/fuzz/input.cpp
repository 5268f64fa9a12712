#include "input.hpp"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "crc32.hpp"

namespace dledger::fuzz {
namespace {

constexpr size_t kStretched = kMaxEntrySize + 64 * 1024;
constexpr size_t kStretchedMore = 14 * 1024 * 1024;
constexpr uint8_t kFirstStretch = 252;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool is_frame_magic(const uint8_t* p, bool is_dledger) {
  return is_dledger ? EntryHeader{p}.is_magic() : is_message_magic(load_be32(p + 4));
}

size_t smallest_frame(bool is_dledger) {
  return static_cast<size_t>(is_dledger ? int64_t{kEntryHeaderSize} : kMinMessageSize);
}

// The size in the frame at p, or 0 if it does not fit the remaining bytes.
size_t frame_size(const uint8_t* p, size_t left, bool is_dledger) {
  if (left < smallest_frame(is_dledger) || !is_frame_magic(p, is_dledger)) return 0;
  const int64_t size = is_dledger ? EntryHeader{p}.size() : load_be32(p);
  if (size < static_cast<int64_t>(smallest_frame(is_dledger)) || size > static_cast<int64_t>(left)) return 0;
  if (is_dledger && size != int64_t{kEntryHeaderSize} + EntryHeader{p}.body_size()) return 0;
  return static_cast<size_t>(size);
}

bool is_blank(const uint8_t* p, bool is_dledger) {
  return load_be32(is_dledger ? p : p + 4) == (is_dledger ? kMagicBlank : kMessageMagicBlank);
}

size_t a_size(size_t least, size_t most, Random& random) {
  if (most <= least) return most;
  return least + random.below(std::min<size_t>(most - least, 300) + 1);
}

struct Continuity {
  bool is_known = false;
  int64_t index = 0, term = 0;
};

void mend_entry(uint8_t* p, size_t size, int64_t pos, bool keeps_index, Continuity& last, Random& random) {
  store_be32(p + 4, static_cast<uint32_t>(size));
  store_be32(p + 44, static_cast<uint32_t>(size) - kEntryHeaderSize);
  if (!random.one_in(40)) store_be64(p + 24, static_cast<uint64_t>(pos));
  if (!keeps_index && last.is_known && !random.one_in(40)) {
    store_be64(p + 8, static_cast<uint64_t>(last.index) + 1);
    if (load_be64(p + 16) < last.term) store_be64(p + 16, static_cast<uint64_t>(last.term));
  }
  if (random.one_in(8)) store_be32(p + 40, random.one_in(4) ? 0 : crc32(p + 48, size - kEntryHeaderSize));
  last = {true, load_be64(p + 8), load_be64(p + 16)};
  const size_t body = size - kEntryHeaderSize;
  if (body >= static_cast<size_t>(kMinMessageSize) && is_message_magic(load_be32(p + 52)) && !random.one_in(16)) {
    mend_message(p + kEntryHeaderSize, body, pos + kEntryHeaderSize, random);
  }
}

}  // namespace

Stretch Options::how_to_stretch() const {
  static const Stretch kHow[] = {Stretch::Chain, Stretch::LongChain, Stretch::Body, Stretch::Zeros};
  return stretch < kFirstStretch ? Stretch::None : kHow[stretch - kFirstStretch];
}

SegmentId Options::segment(size_t file_size) const {
  static const int64_t kMissing[] = {0, 0, 0, 0, 1, 8, 47, 48, 1000, 5 * 1024 * 1024, int64_t{1} << 33};
  SegmentId id;
  id.path = "memory";
  id.name = "00000000000000000000";
  id.base = base;
  id.size = static_cast<int64_t>(file_size) + kMissing[missing % 11];
  id.is_dledger = !has(kCommitLog);
  id.check_pos = !has(kTrustPos);
  if (has(kHasBefore)) id.before = {number & INT64_MAX, 1, id.base};
  return id;
}

Options read_options(const uint8_t* data) {
  Options options;
  uint8_t* const bytes[] = {&options.flags,      &options.mode,        &options.filter, &options.filter_row,
                            &options.batch_rows, &options.batch_bytes, &options.target, &options.range,
                            &options.missing,    &options.stretch};
  for (size_t i = 0; i < 10; i++) *bytes[i] = data[i];
  for (size_t i = 10; i < 16; i++) options.columns = options.columns << 8 | data[i];
  options.base = load_be64(data + 16) & ((int64_t{1} << 62) - 1);
  options.number = load_be64(data + 24);
  return options;
}

void write_options(const Options& options, uint8_t* data) {
  const uint8_t bytes[] = {options.flags,       options.mode,   options.filter, options.filter_row, options.batch_rows,
                           options.batch_bytes, options.target, options.range,  options.missing,    options.stretch};
  std::copy(std::begin(bytes), std::end(bytes), data);
  for (size_t i = 10; i < 16; i++) data[i] = static_cast<uint8_t>(options.columns >> (8 * (15 - i)));
  store_be64(data + 16, static_cast<uint64_t>(options.base));
  store_be64(data + 24, static_cast<uint64_t>(options.number));
}

void store_be32(uint8_t* p, uint32_t value) {
  for (int i = 3; i >= 0; i--, value >>= 8) p[i] = static_cast<uint8_t>(value);
}

void store_be64(uint8_t* p, uint64_t value) {
  for (int i = 7; i >= 0; i--, value >>= 8) p[i] = static_cast<uint8_t>(value);
}

std::vector<Piece> frames_in(const uint8_t* data, size_t size, bool is_dledger) {
  std::vector<Piece> frames;
  for (size_t at = 0; at + smallest_frame(is_dledger) <= size;) {
    const size_t length = frame_size(data + at, size - at, is_dledger);
    if (length > 0) frames.push_back({at, length});
    at += std::max<size_t>(length, 1);
  }
  return frames;
}

void mend(uint8_t* data, size_t size, bool is_dledger, int64_t base, Random& random) {
  const bool keeps_index = random.one_in(6);
  const size_t smallest = smallest_frame(is_dledger);
  Continuity last;
  for (size_t at = 0; at + smallest <= size;) {
    uint8_t* const p = data + at;
    const size_t left = size - at;
    size_t length = frame_size(p, left, is_dledger);
    if (length == 0 && is_frame_magic(p, is_dledger) && random.one_in(at == 0 ? 1 : 4)) {
      length = a_size(smallest, left, random);
    }
    if (length == 0) {
      if (is_blank(p, is_dledger) && random.one_in(2)) store_be32(is_dledger ? p + 4 : p, static_cast<uint32_t>(left));
      at++;
      continue;
    }
    const int64_t pos = base + static_cast<int64_t>(at);
    if (is_dledger) {
      mend_entry(p, length, pos, keeps_index, last, random);
    } else {
      mend_message(p, length, pos, random);
    }
    // A body sometimes contains a log: an attacker's entries also have correct positions.
    if (is_dledger && length > 2 * smallest && random.one_in(3)) {
      mend(p + smallest, length - smallest, is_dledger, pos + static_cast<int64_t>(smallest), random);
    }
    at += length;
  }
}

void mend_message(uint8_t* data, size_t size, int64_t pos, Random& random) {
  store_be32(data, static_cast<uint32_t>(size));
  if (!random.one_in(40)) store_be64(data + 28, static_cast<uint64_t>(pos));
  const uint32_t flags = load_be32u(data + 36);
  const size_t hosts = (flags & kFlagBornHostV6 ? 20u : 8u) + 8 + (flags & kFlagStoreHostV6 ? 20u : 8u);
  size_t at = 48 + hosts + 12;
  const size_t topic_width = load_be32(data + 4) == kMessageMagicV2 ? 2 : 1;
  if (at + 4 + topic_width + 2 > size) return;
  const size_t room = size - at - 4 - topic_width - 2;  // for body, topic and properties
  size_t body = load_be32u(data + at);
  if (body > room) body = random.below(room + 1);
  size_t topic = 0;
  // The rest of the message must fit the lengths of topic and properties.
  body = std::max(body, room > 65535 ? room - 65535 : 0);
  store_be32(data + at, static_cast<uint32_t>(body));
  // Lengths at the limits.
  if (random.one_in(30)) return store_be32(data + at, static_cast<uint32_t>(room + random.below(8)));
  at += 4;
  if (!random.one_in(16)) store_be32(data + 8, crc32(data + at, body) & 0x7FFFFFFFu);
  at += body;
  topic = topic_width == 2 ? load_be16(data + at) : data[at];
  if (topic > room - body) topic = std::min<size_t>(random.below(room - body + 1), topic_width == 2 ? 65535 : 255);
  const bool is_tight = random.one_in(30);
  if (is_tight) topic = room - body + random.below(4);
  if (topic_width == 2) data[at++] = static_cast<uint8_t>(topic >> 8);
  data[at++] = static_cast<uint8_t>(topic);
  if (is_tight) return;
  at += topic;
  const size_t properties = room - body - topic;
  data[at] = static_cast<uint8_t>(properties >> 8);
  data[at + 1] = static_cast<uint8_t>(properties);
}

namespace {

// A segment's bytes and their changes.
using Bytes = std::vector<uint8_t>;

Bytes new_frame(bool is_dledger, Random& random) {
  Bytes frame(smallest_frame(is_dledger) + random.below(random.one_in(8) ? 2000 : 60));
  for (uint8_t& byte : frame) byte = random.one_in(4) ? static_cast<uint8_t>(random.next()) : 0;
  if (is_dledger) {
    std::fill(frame.begin(), frame.begin() + kEntryHeaderSize, uint8_t{0});
    store_be32(frame.data(), random.one_in(4) ? 1 + static_cast<uint32_t>(random.below(3)) : 1);
    store_be64(frame.data() + 8, random.below(1000));
    store_be64(frame.data() + 16, random.below(5));
    store_be32(frame.data() + 4, static_cast<uint32_t>(frame.size()));
    store_be32(frame.data() + 44, static_cast<uint32_t>(frame.size()) - kEntryHeaderSize);
    if (frame.size() >= kEntryHeaderSize + static_cast<size_t>(kMinMessageSize) && random.one_in(2)) {
      store_be32(frame.data() + 52, static_cast<uint32_t>(kMessageMagicV1));
    }
  } else {
    const int32_t magic = random.one_in(3) ? kMessageMagicV2 : kMessageMagicV1;
    store_be32(frame.data(), static_cast<uint32_t>(frame.size()));
    store_be32(frame.data() + 4, static_cast<uint32_t>(magic));
    store_be32(frame.data() + 36, static_cast<uint32_t>(random.below(0x800)));
  }
  return frame;
}

Bytes a_frame(const Bytes& bytes, const std::vector<Piece>& frames, bool is_dledger, Random& random) {
  if (frames.empty() || random.one_in(3)) return new_frame(is_dledger, random);
  const Piece piece = frames[random.below(frames.size())];
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(piece.at);
  return {begin, begin + static_cast<std::ptrdiff_t>(piece.size)};
}

void insert(Bytes& bytes, size_t at, const Bytes& more) {
  bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), more.begin(), more.end());
}

void erase(Bytes& bytes, size_t at, size_t size) {
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  bytes.erase(begin, begin + static_cast<std::ptrdiff_t>(size));
}

// Extends the frame by a chain of frames in its body.
void embed(Bytes& bytes, const Piece& outer, const std::vector<Piece>& frames, bool is_dledger, Random& random) {
  const size_t header = smallest_frame(is_dledger);
  const size_t at = outer.at + header + random.below(outer.size - header + 1);
  Bytes inside;
  const size_t count = 1 + random.below(random.one_in(4) ? 12 : 3);
  const Bytes first = a_frame(bytes, frames, is_dledger, random);
  for (size_t i = 0; i < count && inside.size() < 4000; i++) {
    const Bytes& next = random.one_in(2) ? first : a_frame(bytes, frames, is_dledger, random);
    inside.insert(inside.end(), next.begin(), next.end());
  }
  insert(bytes, at, inside);
  const auto size = static_cast<uint32_t>(outer.size + inside.size());
  uint8_t* const p = bytes.data() + outer.at;
  store_be32(is_dledger ? p + 4 : p, size);
  if (is_dledger) store_be32(p + 44, size - kEntryHeaderSize);
}

Bytes blank_of(size_t size, bool is_dledger, Random& random) {
  Bytes blank(kMinBlankSize + random.below(100));
  store_be32(blank.data() + (is_dledger ? 0 : 4), static_cast<uint32_t>(is_dledger ? kMagicBlank : kMessageMagicBlank));
  store_be32(blank.data() + (is_dledger ? 4 : 0), static_cast<uint32_t>(random.one_in(2) ? blank.size() : size));
  return blank;
}

void change_frames(Bytes& bytes, bool is_dledger, Random& random) {
  const std::vector<Piece> frames = frames_in(bytes.data(), bytes.size(), is_dledger);
  const Piece frame = frames.empty() ? Piece{0, 0} : frames[random.below(frames.size())];
  switch (random.below(frames.empty() ? 2 : 8)) {
    case 0:
      return insert(bytes, frame.at + (random.one_in(2) ? frame.size : 0), a_frame(bytes, frames, is_dledger, random));
    case 1:
      return insert(bytes, frame.at + frame.size, blank_of(bytes.size() - frame.at, is_dledger, random));
    case 2:
      return erase(bytes, frame.at, frame.size);
    case 3:
    case 4:
      return embed(bytes, frame, frames, is_dledger, random);
    case 5: {  // another order
      const Bytes moved = a_frame(bytes, frames, is_dledger, random);
      erase(bytes, frame.at, frame.size);
      return insert(bytes, std::min(bytes.size(), frames[random.below(frames.size())].at), moved);
    }
    case 6:  // the end of the file somewhere in a frame
      return bytes.resize(frame.at + random.below(frame.size + 1));
    default:  // zeros, as in unwritten space
      return insert(bytes, frame.at + frame.size, Bytes(random.below(200)));
  }
}

void damage(Bytes& bytes, bool is_dledger, Random& random) {
  if (bytes.empty()) return;
  const std::vector<Piece> frames = frames_in(bytes.data(), bytes.size(), is_dledger);
  size_t at = random.below(bytes.size());
  if (!frames.empty() && !random.one_in(4)) {
    at = std::min(frames[random.below(frames.size())].at + 4 * random.below(40), bytes.size() - 1);
  }
  const size_t length = std::min(bytes.size() - at, 1 + random.below(random.one_in(3) ? 300 : 8));
  static const int64_t kNumbers[] = {0, 1, 2, 48, 91, -1, -2, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 127, 255};
  switch (random.below(5)) {
    case 0:
      bytes[at] ^= static_cast<uint8_t>(1u << random.below(8));
      return;
    case 1:
      std::memset(&bytes[at], 0, length);
      return;
    case 2:
      for (size_t i = 0; i < length; i++) bytes[at + i] = static_cast<uint8_t>(random.next());
      return;
    case 3:  // another page
      std::memmove(&bytes[at], &bytes[random.below(bytes.size() - length + 1)], length);
      return;
    default:
      if (bytes.size() - at >= 8) {
        const int64_t number = kNumbers[random.below(sizeof kNumbers / sizeof kNumbers[0])];
        if (random.one_in(2)) {
          store_be64(&bytes[at], static_cast<uint64_t>(number));
        } else {
          store_be32(&bytes[at], static_cast<uint32_t>(number));
        }
      }
  }
}

}  // namespace

size_t mutate_segment(uint8_t* data, size_t size, size_t max_size, uint64_t seed) {
  Random random(seed);
  max_size = std::min(max_size, kMaxInputSize);
  if (max_size < kOptionBytes) return LLVMFuzzerMutate(data, size, max_size);
  if (size < kOptionBytes) {
    std::fill(data + size, data + kOptionBytes, uint8_t{0});
    size = kOptionBytes;
  }
  if (random.one_in(6)) {
    LLVMFuzzerMutate(data, kOptionBytes, kOptionBytes);
    if (random.one_in(3)) return size;
  }
  Options options = read_options(data);
  // A stretched segment costs a hundred times more.
  options.stretch = random.one_in(300) ? static_cast<uint8_t>(kFirstStretch + random.below(4)) : 0;
  write_options(options, data);
  const bool is_dledger = !options.has(kCommitLog);
  Bytes bytes(data + kOptionBytes, data + size);
  const size_t most = max_size - kOptionBytes;
  if (random.one_in(3)) {
    bytes.resize(std::max<size_t>(most, bytes.size()));
    bytes.resize(LLVMFuzzerMutate(bytes.data(), size - kOptionBytes, most));
  } else {
    const size_t times = 1 + random.below(3);
    for (size_t i = 0; i < times; i++) change_frames(bytes, is_dledger, random);
  }
  if (bytes.size() > most) bytes.resize(most);
  if (!random.one_in(5)) mend(bytes.data(), bytes.size(), is_dledger, options.base, random);
  if (random.one_in(3)) damage(bytes, is_dledger, random);
  std::copy(bytes.begin(), bytes.end(), data + kOptionBytes);
  return kOptionBytes + bytes.size();
}

std::vector<uint8_t> segment_bytes(const Options& options, const uint8_t* data, size_t size) {
  Bytes bytes(data, data + size);
  const bool is_dledger = !options.has(kCommitLog);
  const std::vector<Piece> frames = frames_in(data, size, is_dledger);
  if (options.how_to_stretch() == Stretch::None || frames.empty()) return bytes;
  const Piece last = frames[static_cast<size_t>(options.range) % frames.size()];
  Random random(options.columns);
  if (options.how_to_stretch() == Stretch::Zeros) {
    insert(bytes, last.at + last.size, Bytes(kStretched));
    return bytes;
  }
  Bytes frame(data + last.at, data + last.at + last.size);
  const size_t length = options.how_to_stretch() == Stretch::LongChain ? kStretchedMore : kStretched;
  frame.resize(std::max(last.size, length / 200));
  store_be32(frame.data() + (is_dledger ? 4 : 0), static_cast<uint32_t>(frame.size()));
  if (is_dledger) store_be32(frame.data() + 44, static_cast<uint32_t>(frame.size()) - kEntryHeaderSize);
  if (!is_dledger) mend_message(frame.data(), frame.size(), 0, random);
  Bytes chain;
  chain.reserve(length + frame.size());
  const size_t header = options.how_to_stretch() == Stretch::Body ? smallest_frame(is_dledger) : 0;
  const size_t start = last.at + (header > 0 ? header : last.size);
  int64_t index = load_be64(frame.data() + 8);
  while (chain.size() < length) {
    const int64_t pos = options.base + static_cast<int64_t>(start + chain.size());
    store_be64(frame.data() + (is_dledger ? 24 : 28), static_cast<uint64_t>(pos));
    if (is_dledger && index < INT64_MAX) store_be64(frame.data() + 8, static_cast<uint64_t>(++index));
    chain.insert(chain.end(), frame.begin(), frame.end());
  }
  insert(bytes, start, chain);
  if (header > 0) {
    const auto outer = static_cast<uint32_t>(last.size + chain.size());
    store_be32(bytes.data() + last.at + (is_dledger ? 4 : 0), outer);
    if (is_dledger) store_be32(bytes.data() + last.at + 44, outer - kEntryHeaderSize);
  }
  // The following frames have moved but keep their positions: usually a corrupt log after a gap.
  if (random.one_in(2))
    mend(bytes.data() + start + chain.size(), bytes.size() - start - chain.size(), is_dledger,
         options.base + static_cast<int64_t>(start + chain.size()), random);
  return bytes;
}

void fail(const std::string& what) {
  std::fprintf(stderr, "IS FALSE: %s\n", what.c_str());
  std::fflush(stderr);
  std::abort();
}

TimeLimit::TimeLimit(double seconds) : end_(processor_seconds() + seconds) {}

TimeLimit::~TimeLimit() { check(processor_seconds() < end_, "an input ends within its processor time"); }

}  // namespace dledger::fuzz
