#include "properties.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>

#include "message.hpp"
#include "puts.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dledger {
namespace {

constexpr size_t kBlock = 64;
constexpr size_t kManyProperties = 32;

// Bit i of `found` is set if byte i of the 64 at p separates properties, or names from values. Bits of `high` are set
// if any byte is not ASCII.
struct Separators {
  uint64_t found = 0;
  uint32_t high = 0;

  explicit Separators(const uint8_t* p) {
#if defined(__SSE2__)
    const __m128i pair = _mm_set1_epi8(kPropertySeparator), name = _mm_set1_epi8(kNameValueSeparator);
    __m128i all = _mm_setzero_si128();
    for (int i = 0; i < 64; i += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i));
      const __m128i either = _mm_or_si128(_mm_cmpeq_epi8(bytes, pair), _mm_cmpeq_epi8(bytes, name));
      found |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(either))) << i;
      all = _mm_or_si128(all, bytes);
    }
    high = static_cast<uint32_t>(_mm_movemask_epi8(all));
#else
    for (int i = 0; i < 64; i++) {
      found |= uint64_t{p[i] == kPropertySeparator || p[i] == kNameValueSeparator} << i;
      high |= p[i] & 0x80u;
    }
#endif
  }
};

#if defined(__x86_64__)
#define WIDE_TARGET "avx512f,avx512bw"

// The same of each block, 64 bytes in one register.
__attribute__((target(WIDE_TARGET))) bool separators_wide(const uint8_t* p, size_t blocks, uint64_t* found) {
  const __m512i pair = _mm512_set1_epi8(kPropertySeparator), name = _mm512_set1_epi8(kNameValueSeparator);
  __mmask64 high = 0;
  for (size_t i = 0; i < blocks; i++) {
    const __m512i bytes = _mm512_loadu_si512(p + i * kBlock);
    found[i] = _mm512_cmpeq_epi8_mask(bytes, pair) | _mm512_cmpeq_epi8_mask(bytes, name);
    high |= _mm512_movepi8_mask(bytes);
  }
  return high != 0;
}

__attribute__((target(WIDE_TARGET))) bool differs_wide(const uint8_t* p, const uint64_t* text, const uint64_t* mask,
                                                       size_t blocks) {
  __m512i different = _mm512_setzero_si512();
  for (size_t i = 0; i < blocks; i++) {
    const __m512i other = _mm512_xor_si512(_mm512_loadu_si512(p + i * kBlock), _mm512_loadu_si512(text + i * 8));
    different = _mm512_or_si512(different, _mm512_and_si512(other, _mm512_loadu_si512(mask + i * 8)));
  }
  return _mm512_test_epi64_mask(different, different) != 0;
}

const bool kIsWide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
#endif

std::string_view key_of(const Property& property) {
  return {reinterpret_cast<const char*>(property.key), property.key_length};
}

}  // namespace

void split_properties(const uint8_t* begin, const uint8_t* end, std::vector<Property>& properties) {
  const uint8_t *start = begin, *equals = nullptr;
  const auto add = [&](const uint8_t* stop) {
    if (equals != nullptr && equals > start && equals + 1 < stop) {
      properties.push_back(
          {start, equals + 1, static_cast<uint32_t>(equals - start), static_cast<uint32_t>(stop - equals - 1)});
    }
    start = stop + 1;
    equals = nullptr;
  };
  for (const uint8_t* block = begin; block < end; block += kBlock) {
    const auto left = static_cast<size_t>(end - block);
    uint8_t rest[kBlock] = {};
    if (left < kBlock) std::memcpy(rest, block, left);
    for (uint64_t found = Separators(left < kBlock ? rest : block).found; found != 0; found &= found - 1) {
      const uint8_t* const at = block + __builtin_ctzll(found);
      if (*at == kPropertySeparator) {
        add(at);
      } else if (equals == nullptr) {
        equals = at;
      }
    }
  }
  if (start < end) add(end);
}

// With many properties, comparing each pair would take too long.
void merge_properties(std::vector<Property>& properties, size_t begin) {
  Property* const first = properties.data() + begin;
  const size_t count = properties.size() - begin;
  std::unordered_map<std::string_view, size_t> numbers;
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    const Property property = first[i];
    size_t number = 0;
    if (count > kManyProperties) {
      number = numbers.emplace(key_of(property), kept).first->second;
    } else {
      const auto has_key = [&](const Property& other) { return key_of(other) == key_of(property); };
      number = static_cast<size_t>(std::find_if(first, first + kept, has_key) - first);
    }
    const uint8_t* const name = number < kept ? first[number].key : property.key;
    first[number] = {name, property.value, property.key_length, property.value_length};
    kept = std::max(kept, number + 1);
  }
  properties.resize(begin + kept);
}

NamedProperties find_named(const Property* properties, size_t count) {
  NamedProperties named;
  for (size_t i = 0; i < count; i++) {
    const std::string_view key = key_of(properties[i]);
    const auto number = static_cast<int32_t>(i);
    if (key == "TAGS") named.tags = number;
    if (key == "KEYS") named.keys = number;
    if (key == "UNIQ_KEY") named.uniq_key = number;
    if (key == kPropertyId) named.put_id = number;
  }
  return named;
}

namespace {

// Finds the separators of each block. Returns whether any byte is not ASCII.
bool find_separators(const uint8_t* p, size_t blocks, uint64_t* found) {
#if defined(__x86_64__)
  if (kIsWide) return separators_wide(p, blocks, found);
#endif
  uint32_t high = 0;
  for (size_t i = 0; i < blocks; i++) {
    const Separators block(p + i * kBlock);
    found[i] = block.found;
    high |= block.high;
  }
  return high != 0;
}

// Whether a bit of the mask differs in the blocks of p and the text.
bool differs(const uint8_t* p, const uint64_t* text, const uint64_t* mask, size_t blocks) {
#if defined(__x86_64__)
  if (kIsWide) return differs_wide(p, text, mask, blocks);
#endif
  uint64_t different = 0;
  for (size_t i = 0; i < blocks * kBlock / 8; i++) {
    uint64_t bytes;
    std::memcpy(&bytes, p + i * 8, sizeof bytes);
    different |= (bytes ^ text[i]) & mask[i];
  }
  return different != 0;
}

}  // namespace

const PropertyShape* PropertyShapes::find(const uint8_t* text, size_t size) {
  if (slots_.empty()) slots_.resize(size_t{1} << kSlotBits);
  const size_t blocks = (size + kBlock - 1) / kBlock;
  is_ascii_ = !find_separators(text, blocks, separators_);
  uint64_t hash = size;
  for (size_t i = 0; i < blocks; i++) {
    hash = (hash ^ separators_[i]) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  hash_ = hash;
  Slot& slot = slots_[hash & (slots_.size() - 1)];
  const PropertyShape& shape = slot.shape;
  if (shape.size != size) return nullptr;
  uint64_t different = 0;
  for (size_t i = 0; i < blocks; i++) different |= separators_[i] ^ shape.separators[i];
  if (different != 0 || differs(text, shape.text, shape.is_fixed, blocks)) return nullptr;
  slot.used = uses_;
  return &shape;
}

void PropertyShapes::learn(const uint8_t* text, size_t size, const Property* properties, size_t count) {
  Slot& slot = slots_[hash_ & (slots_.size() - 1)];
  const bool is_repeated = slot.missed == hash_;
  slot.missed = hash_;
  if (!is_repeated || slot.used == uses_ || count > PropertyShape::kMaxPairs) return;
  PropertyShape& shape = slot.shape;
  shape.size = static_cast<uint32_t>(size);
  shape.pairs = static_cast<uint32_t>(count);
  const size_t blocks = (size + kBlock - 1) / kBlock;
  std::copy(separators_, separators_ + blocks, shape.separators);
  std::memset(shape.text, 0, blocks * kBlock);
  std::memcpy(shape.text, text, size);
  auto* const is_fixed = reinterpret_cast<uint8_t*>(shape.is_fixed);
  for (size_t i = 0; i < blocks * kBlock; i++) is_fixed[i] = separators_[i / kBlock] >> (i % kBlock) & 1 ? 0xFF : 0;
  shape.names_size = 0;
  for (size_t i = 0; i < count; i++) {
    const Property& property = properties[i];
    std::memset(is_fixed + (property.key - text), 0xFF, property.key_length);
    std::memcpy(shape.names + shape.names_size, property.key, property.key_length);
    shape.names_size += property.key_length;
    shape.name_ends[i] = static_cast<int32_t>(shape.names_size);
    shape.value_at[i] = static_cast<uint16_t>(property.value - text);
    shape.value_size[i] = static_cast<uint16_t>(property.value_length);
  }
  shape.named = find_named(properties, count);
}

}  // namespace dledger
