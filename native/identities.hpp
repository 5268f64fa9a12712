// Identities of puts: which of them a leader has appended, and a filter of those in sorted runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "append.hpp"

namespace dledger {

// 24 bytes as three numbers: the producer and both halves of the hash.
struct Identity {
  uint64_t producer, first, second;

  bool operator==(const Identity& other) const {
    return producer == other.producer && first == other.first && second == other.second;
  }
};

// Consecutive identities, at any address.
class Identities {
 public:
  // Throws std::invalid_argument for bytes that are no whole identities.
  explicit Identities(const ByteRange& bytes);

  size_t size() const { return size_; }
  Identity operator[](size_t i) const;

 private:
  const uint8_t* data_;
  size_t size_;
};

// Hashes with secret numbers: clients choose identities, and must not be able to choose their places.
class IdentityHash {
 public:
  IdentityHash();
  uint64_t operator()(const Identity& id) const;

 private:
  uint64_t keys_[4];
};

// Identities with the indexes of their entries, which ascend.
class IdentityTable {
 public:
  // `index` has a number of 8 bytes for each identity.
  void add(const Identities& ids, const uint8_t* index);
  // Ordinals and indexes of the known ones; of equal identities the last index.
  std::vector<std::pair<int64_t, int64_t>> find(const Identities& ids) const;
  // Ordinals of identities that equal an earlier one of the same call, and the first such. `counts` has a byte for each
  // identity; those with 0 are ignored.
  std::vector<std::pair<int64_t, int64_t>> repeats(const Identities& ids, const uint8_t* counts) const;
  // Drops identities up to that index.
  void forget(int64_t covered);
  size_t size() const { return records_.size() - begin_; }

  struct Found {
    std::vector<Identity> ids;
    std::vector<int64_t> index;
  };
  // The identities of a producer with an index above `covered`, in their order.
  Found of_producer(uint64_t producer, int64_t covered) const;

 private:
  struct Record {
    Identity id;
    int64_t index;
  };

  size_t slot_of(const Identity& id, uint64_t hash) const;
  void put(size_t number, uint64_t hash);
  void rebuild(size_t room);

  IdentityHash hash_;
  std::vector<Record> records_;
  size_t begin_ = 0;             // records before it are dropped
  std::vector<uint32_t> slots_;  // 0, or the number of a record after 1
};

// A Bloom filter with seven bits of one cache line for each identity.
class IdentityFilter {
 public:
  // Throws std::bad_alloc.
  explicit IdentityFilter(int64_t min_ids);

  int64_t capacity() const;
  void add(const Identities& ids);
  // The ordinals of those that may have been added.
  std::vector<int64_t> candidates(const Identities& ids) const;

 private:
  struct alignas(64) Line {
    uint64_t words[8] = {};
  };

  size_t line_of(uint64_t hash) const { return hash & (lines_.size() - 1); }

  IdentityHash hash_;
  std::vector<Line> lines_;
};

}  // namespace dledger
