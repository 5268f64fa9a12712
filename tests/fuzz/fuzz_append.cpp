// Any bytes as entries of another node and as a block of bodies. Each call is compared with a second implementation.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "append.hpp"
#include "crc32.hpp"
#include "input.hpp"

namespace dledger::fuzz {
namespace {

constexpr double kSeconds = 5;
constexpr size_t kNumbers = 12;  // before the bytes: count, first, space and position
constexpr int64_t kMaxPosition = int64_t{1} << 62;

struct Numbers {
  int64_t count, first, space, pos;

  explicit Numbers(const uint8_t* data)
      : count(data[0] % 32 + 1), first(data[1] % count), space(load_be16(data + 2)), pos(load_be64(data + 4)) {
    pos &= kMaxPosition - 1;
  }
};

// The result of `call`, or nothing if it rejects its input with an "expected" text.
template <typename Call>
auto result_of(Call call) -> std::optional<decltype(call())> {
  try {
    return call();
  } catch (const std::invalid_argument& rejection) {
    check(std::strstr(rejection.what(), "expected ") != nullptr, "a rejection says what was expected");
    return std::nullopt;
  }
}

// The sizes of the entries in the bytes; none if they are incomplete.
std::vector<int64_t> sizes_of(const std::vector<uint8_t>& bytes) {
  std::vector<int64_t> sizes;
  for (size_t at = 0; at < bytes.size();) {
    if (bytes.size() - at < 48) return {};
    const uint8_t* const p = &bytes[at];
    const int64_t size = load_be32(p + 4), body = load_be32(p + 44);
    if (load_be32(p) != 1 || body < 0 || size - body != 48 || size > 4194304) return {};
    if (static_cast<size_t>(size) > bytes.size() - at) return {};
    sizes.push_back(size);
    at += static_cast<size_t>(size);
  }
  return sizes;
}

bool are_in_order(const std::vector<uint8_t>& bytes, const std::vector<int64_t>& sizes, EntryPosition next,
                  int64_t max_term) {
  const uint8_t* p = bytes.data();
  for (const int64_t size : sizes) {
    const int64_t term = load_be64(p + 16);
    if (load_be64(p + 8) != next.index || load_be64(p + 24) != next.pos) return false;
    if (term < next.term || term > max_term) return false;
    next = {next.index + 1, term, next.pos + size};
    p += size;
  }
  return !sizes.empty();
}

void check_units(const Buffer& units, const std::vector<uint8_t>& bytes, const std::vector<int64_t>& sizes) {
  check(units.size() == sizes.size() * 32, "an entry has one unit");
  const uint8_t *p = bytes.data(), *unit = units.data();
  for (const int64_t size : sizes) {
    check(
        std::memcmp(unit, p, 4) == 0 && std::memcmp(unit + 4, p + 24, 8) == 0 && std::memcmp(unit + 12, p + 4, 4) == 0,
        "a unit has the magic, position and size of its entry");
    check(std::memcmp(unit + 16, p + 8, 16) == 0, "a unit has its entry's index and term");
    p += size;
    unit += 32;
  }
}

// A checksum decides where there is one, else a sector of zeros.
bool is_torn(const uint8_t* entry, int64_t size, int64_t pos) {
  const auto stored = static_cast<uint32_t>(load_be32(entry + 40));
  if (stored != 0) return crc32(entry + 48, static_cast<size_t>(size - 48)) != stored;
  for (int64_t sector = (pos + 48) / 512; sector <= (pos + size) / 512; sector++) {
    const int64_t from = std::max<int64_t>(48, sector * 512 - pos), to = std::min(size, sector * 512 + 512 - pos);
    if (from < to && std::count(entry + from, entry + to, 0) == to - from) return true;
  }
  return false;
}

void check_torn(const std::vector<uint8_t>& bytes, const std::vector<int64_t>& sizes, int64_t pos) {
  const auto found = result_of([&] { return find_torn({bytes.data(), static_cast<int64_t>(bytes.size())}, pos); });
  if (sizes.empty() && !bytes.empty()) {  // rejected, unless a torn entry is before the first invalid one
    check(!found || found->has_value(), "incomplete entries are not accepted");
    return;
  }
  check(found.has_value(), "entries are accepted");
  std::optional<int64_t> expected;
  int64_t at = 0;
  for (const int64_t size : sizes) {
    if (!expected && is_torn(&bytes[static_cast<size_t>(at)], size, pos + at)) expected = at;
    at += size;
  }
  check(*found == expected, "the first torn entry has a wrong checksum, or none and a sector of zeros");
}

void run_entries(const Numbers& numbers, const std::vector<uint8_t>& bytes) {
  const ByteRange data{bytes.data(), static_cast<int64_t>(bytes.size())};
  const std::vector<int64_t> sizes = sizes_of(bytes);
  const int64_t index = bytes.size() < 48 ? 0 : load_be64(&bytes[8]) & (kMaxPosition - 1);
  for (const auto& [min_term, max_term] :
       {std::pair<int64_t, int64_t>(-1, INT64_MAX), {numbers.first, numbers.count}}) {
    const EntryPosition first{index, min_term, numbers.pos};
    const auto checked = result_of([&, highest = max_term] { return check_entries(data, first, highest); });
    check(checked.has_value() == are_in_order(bytes, sizes, first, max_term), "only entries in order are accepted");
    if (!checked) continue;
    check(checked->count == static_cast<int64_t>(sizes.size()), "entries are counted");
    check(checked->last_term == load_be64(&bytes[bytes.size() - static_cast<size_t>(sizes.back()) + 16]),
          "the last term is the last entry's");
    check_units(checked->units, bytes, sizes);
  }
  check_torn(bytes, sizes, numbers.pos);
}

// The lengths of the bodies; none if they do not fit the block.
std::vector<int64_t> lengths_of(int64_t count, const std::vector<uint8_t>& bytes) {
  std::vector<int64_t> lengths;
  int64_t size = 4 * count;
  if (static_cast<size_t>(size) > bytes.size()) return {};
  for (int64_t i = 0; i < count; i++) {
    lengths.push_back(load_be32u(&bytes[static_cast<size_t>(4 * i)]));
    size += lengths.back();
    if (lengths.back() > 4194256) return {};
  }
  return static_cast<size_t>(size) == bytes.size() ? lengths : std::vector<int64_t>();
}

void run_block(const Numbers& numbers, const std::vector<uint8_t>& bytes) {
  const PackedBodies bodies{numbers.count, {bytes.data(), static_cast<int64_t>(bytes.size())}};
  const std::vector<int64_t> lengths = lengths_of(numbers.count, bytes);
  const auto unpacked = result_of([&] { return unpack(bodies); });
  const auto fitting = result_of([&] { return find_fitting(bodies, numbers.first, numbers.space); });
  check(unpacked.has_value() == !lengths.empty() && fitting.has_value() == !lengths.empty(),
        "a block whose lengths fit is taken, and no other");
  if (!unpacked) return;

  check(block_size(*unpacked) == static_cast<int64_t>(bytes.size()), "a block is packed to its size");
  std::vector<uint8_t> packed(bytes.size());
  pack(*unpacked, packed.data());
  check(packed == bytes, "a block is packed to its bytes");

  int64_t count = 0, size = 0;
  for (size_t i = static_cast<size_t>(numbers.first); i < lengths.size(); i++, count++) {
    if (size + 48 + lengths[i] + 8 > numbers.space) break;
    size += 48 + lengths[i];
  }
  check(fitting->count == count && fitting->size == size, "entries leave space for a blank");
  const EntryPosition first{numbers.space, numbers.count, numbers.pos};
  std::vector<uint8_t> data(static_cast<size_t>(size)), units(static_cast<size_t>(count * 32));
  encode(bodies, *fitting, first, data.data(), units.data());
  if (count == 0) return;
  const CheckedEntries checked = check_entries({data.data(), size}, first, first.term);
  check(checked.count == count && std::equal(units.begin(), units.end(), checked.units.data()),
        "encoded entries are in order, with the same units");
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    const ByteRange& body = (*unpacked)[static_cast<size_t>(numbers.first + i)];
    check(std::equal(body.data, body.data + body.size, data.begin() + at + 48), "an entry has its body");
    at += 48 + body.size;
  }
}

// Lengths that fit the bytes.
void mend_block(int64_t count, uint8_t* data, size_t size, Random& random) {
  if (size < static_cast<size_t>(4 * count)) return;
  size_t left = size - static_cast<size_t>(4 * count);
  for (int64_t i = 0; i < count; i++) {
    const size_t length = i + 1 == count ? left : random.below(std::min<size_t>(left, random.one_in(3) ? 9 : 700) + 1);
    store_be32(data + 4 * i, static_cast<uint32_t>(length));
    left -= length;
  }
}

}  // namespace
}  // namespace dledger::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace dledger::fuzz;
  Random random(seed);
  size = LLVMFuzzerMutate(data, size, max_size);
  if (size <= kNumbers) return size;
  const Numbers numbers(data);
  uint8_t* const bytes = data + kNumbers;
  size_t start = 0;
  switch (random.below(4)) {
    case 0:
      mend_block(numbers.count, bytes, size - kNumbers, random);
      break;
    case 1:  // sectors that were never written
      start = random.below(size - kNumbers);
      std::memset(bytes + start, 0, std::min(size - kNumbers - start, random.below(1200)));
      break;
    case 2:
      mend(bytes, size - kNumbers, true, numbers.pos, random);
  }
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dledger::fuzz;
  if (size < kNumbers || size > kMaxInputSize) return -1;
  const TimeLimit limit(kSeconds);
  const Numbers numbers(data);
  const std::vector<uint8_t> bytes(data + kNumbers, data + size);  // so that ASan finds reads after its end
  run_entries(numbers, bytes);
  run_block(numbers, bytes);
  return 0;
}
