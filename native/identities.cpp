#include "identities.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>

namespace dledger {
namespace {

constexpr size_t kIdentitySize = sizeof(Identity);
static_assert(kIdentitySize == 24);
constexpr size_t kMinSlots = 1024;
constexpr size_t kMinLines = 1 << 11;
constexpr size_t kIdsPerLine = 32;
constexpr int kBitsPerId = 7;
constexpr uint64_t kBitsKey = 0x9E3779B97F4A7C15;
// Identities that are hashed together, so that their places are fetched from memory at the same time.
constexpr size_t kTogether = 64;

uint64_t mix(uint64_t one, uint64_t other) {
  __extension__ using Product = unsigned __int128;
  const Product product = static_cast<Product>(one) * other;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Calls work(word, bit) for each bit of an identity in its line.
template <typename Work>
void for_each_bit(uint64_t hash, Work work) {
  uint64_t numbers = mix(hash, kBitsKey);
  for (int i = 0; i < kBitsPerId; i++, numbers >>= 9) work(numbers >> 6 & 7, uint64_t{1} << (numbers & 63));
}

// Calls fetch(hash) for some identities, then work(ordinal, hash) for the same ones.
template <typename Fetch, typename Work>
void for_each_hash(const IdentityHash& hash, const Identities& ids, Fetch fetch, Work work) {
  uint64_t hashes[kTogether];
  for (size_t start = 0; start < ids.size(); start += kTogether) {
    const size_t count = std::min(kTogether, ids.size() - start);
    for (size_t i = 0; i < count; i++) {
      hashes[i] = hash(ids[start + i]);
      __builtin_prefetch(fetch(hashes[i]));
    }
    for (size_t i = 0; i < count; i++) work(start + i, hashes[i]);
  }
}

}  // namespace

Identities::Identities(const ByteRange& bytes)
    : data_(bytes.data), size_(static_cast<size_t>(bytes.size) / kIdentitySize) {
  if (static_cast<size_t>(bytes.size) % kIdentitySize != 0) {
    throw std::invalid_argument("expected identities of 24 bytes, found " + std::to_string(bytes.size) + " bytes");
  }
}

Identity Identities::operator[](size_t i) const {
  Identity id;
  std::memcpy(&id, data_ + i * kIdentitySize, kIdentitySize);
  return id;
}

IdentityHash::IdentityHash() {
  std::random_device random;
  for (uint64_t& key : keys_) key = uint64_t{random()} << 32 | random();
  keys_[3] |= 1;
}

uint64_t IdentityHash::operator()(const Identity& id) const {
  return mix(mix(id.first ^ keys_[0], id.second ^ keys_[1]) ^ id.producer ^ keys_[2], keys_[3]);
}

void IdentityTable::add(const Identities& ids, const uint8_t* index) {
  if (ids.size() >= UINT32_MAX / 2 - records_.size()) throw std::length_error("too many recent identities");
  if (2 * (records_.size() + ids.size()) > slots_.size()) rebuild(ids.size());
  for_each_hash(
      hash_, ids, [&](uint64_t hash) { return &slots_[hash & (slots_.size() - 1)]; },
      [&](size_t i, uint64_t hash) {
        int64_t number;
        std::memcpy(&number, index + i * sizeof number, sizeof number);
        records_.push_back({ids[i], number});
        put(records_.size() - 1, hash);
      });
}

// The slot of an identity, or the empty one that it would get.
size_t IdentityTable::slot_of(const Identity& id, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  while (slots_[slot] != 0 && !(records_[slots_[slot] - 1].id == id)) slot = (slot + 1) & mask;
  return slot;
}

void IdentityTable::put(size_t number, uint64_t hash) {
  slots_[slot_of(records_[number].id, hash)] = static_cast<uint32_t>(number + 1);
}

// Removes dropped records, with room for more of them.
void IdentityTable::rebuild(size_t room) {
  records_.erase(records_.begin(), records_.begin() + static_cast<std::ptrdiff_t>(begin_));
  begin_ = 0;
  size_t size = kMinSlots;
  while (size < 4 * (records_.size() + room)) size *= 2;
  slots_.assign(size, 0);
  for (size_t i = 0; i < records_.size(); i++) put(i, hash_(records_[i].id));
}

std::vector<std::pair<int64_t, int64_t>> IdentityTable::find(const Identities& ids) const {
  std::vector<std::pair<int64_t, int64_t>> found;
  if (size() == 0) return found;
  for_each_hash(
      hash_, ids, [&](uint64_t hash) { return &slots_[hash & (slots_.size() - 1)]; },
      [&](size_t i, uint64_t hash) {
        const uint32_t number = slots_[slot_of(ids[i], hash)];
        if (number > begin_) found.emplace_back(i, records_[number - 1].index);
      });
  return found;
}

std::vector<std::pair<int64_t, int64_t>> IdentityTable::repeats(const Identities& ids, const uint8_t* counts) const {
  std::vector<std::pair<int64_t, int64_t>> found;
  size_t size = 1;
  while (size < 2 * ids.size()) size *= 2;
  std::vector<uint32_t> slots(size);  // 0, or an ordinal plus 1
  for (size_t i = 0; i < ids.size(); i++) {
    if (counts[i] == 0) continue;
    const Identity id = ids[i];
    size_t slot = hash_(id) & (size - 1);
    while (slots[slot] != 0 && !(ids[slots[slot] - 1] == id)) slot = (slot + 1) & (size - 1);
    if (slots[slot] == 0) {
      slots[slot] = static_cast<uint32_t>(i + 1);
    } else {
      found.emplace_back(i, slots[slot] - 1);
    }
  }
  return found;
}

void IdentityTable::forget(int64_t covered) {
  while (begin_ < records_.size() && records_[begin_].index <= covered) begin_++;
}

IdentityTable::Found IdentityTable::of_producer(uint64_t producer, int64_t covered) const {
  Found found;
  for (size_t i = begin_; i < records_.size(); i++) {
    if (records_[i].id.producer != producer || records_[i].index <= covered) continue;
    found.ids.push_back(records_[i].id);
    found.index.push_back(records_[i].index);
  }
  return found;
}

IdentityFilter::IdentityFilter(int64_t min_ids) {
  size_t size = kMinLines;
  while (size * kIdsPerLine < static_cast<size_t>(min_ids)) size *= 2;
  lines_.resize(size);
}

int64_t IdentityFilter::capacity() const { return static_cast<int64_t>(lines_.size() * kIdsPerLine); }

void IdentityFilter::add(const Identities& ids) {
  for_each_hash(
      hash_, ids, [&](uint64_t hash) { return &lines_[line_of(hash)]; },
      [&](size_t, uint64_t hash) {
        Line& line = lines_[line_of(hash)];
        for_each_bit(hash, [&](uint64_t word, uint64_t bit) { line.words[word] |= bit; });
      });
}

std::vector<int64_t> IdentityFilter::candidates(const Identities& ids) const {
  std::vector<int64_t> found;
  for_each_hash(
      hash_, ids, [&](uint64_t hash) { return &lines_[line_of(hash)]; },
      [&](size_t i, uint64_t hash) {
        const Line& line = lines_[line_of(hash)];
        uint64_t missing = 0;
        for_each_bit(hash, [&](uint64_t word, uint64_t bit) { missing |= bit & ~line.words[word]; });
        if (missing == 0) found.push_back(static_cast<int64_t>(i));
      });
  return found;
}

}  // namespace dledger
