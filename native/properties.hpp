// The properties of a message: pairs of a name and a value, as MessageDecoder.string2messageProperties of 5.x reads
// them: a pair needs both, and the last of equal names wins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dledger {

struct Property {
  const uint8_t* key;
  const uint8_t* value;
  uint32_t key_length, value_length;
};

// The numbers of the pairs that have a column; -1 without one.
struct NamedProperties {
  int32_t tags = -1, keys = -1, uniq_key = -1, put_id = -1;
};

// Bytes after a text that may be read; zeros where it says so.
constexpr size_t kTextPadding = 64;

// Appends the pairs in [begin, end) to `properties`, also those with equal names.
void split_properties(const uint8_t* begin, const uint8_t* end, std::vector<Property>& properties);

// Merges equal names from `first` on.
void merge_properties(std::vector<Property>& properties, size_t first);

NamedProperties find_named(const Property* properties, size_t count);

// Where the pairs are in all texts with the same size, separators and names.
struct PropertyShape {
  static constexpr size_t kMaxSize = 512, kMaxPairs = 32;

  uint32_t size = 0;  // of a text; 0 if the shape is unused
  uint32_t pairs = 0;
  uint64_t separators[kMaxSize / 64];
  uint64_t text[kMaxSize / 8], is_fixed[kMaxSize / 8];  // one of the texts; the bits of its separators and names
  uint8_t names[kMaxSize + kTextPadding];               // one after the other
  uint32_t names_size = 0;
  int32_t name_ends[kMaxPairs];
  uint16_t value_at[kMaxPairs], value_size[kMaxPairs];
  NamedProperties named;
};

// The shapes of recent properties: most messages have one of a few.
class PropertyShapes {
 public:
  // The shape of a text of at most kMaxSize bytes before kTextPadding zeros, or nullptr if it is not known. It stays as
  // it is until `release`.
  const PropertyShape* find(const uint8_t* text, size_t size);

  // Whether the text of the last `find` is ASCII.
  bool is_ascii() const { return is_ascii_; }

  // Learns the shape of the text of the last `find`, which has these pairs, all with different names, if it comes again
  // soon.
  void learn(const uint8_t* text, size_t size, const Property* properties, size_t count);

  void release() { uses_++; }

 private:
  static constexpr int kSlotBits = 6;

  struct Slot {
    uint64_t missed = 0;  // hash of the last text without a shape here
    uint64_t used = 0;    // uses_ at the last use
    PropertyShape shape;
  };

  std::vector<Slot> slots_;
  uint64_t hash_ = 0, uses_ = 1;
  uint64_t separators_[PropertyShape::kMaxSize / 64];  // of the last `find`
  bool is_ascii_ = true;
};

}  // namespace dledger
