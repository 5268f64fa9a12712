// The 48-byte header before an entry's body (DLedgerEntryCoder).
#pragma once

#include "bytes.hpp"
#include "crc32.hpp"

namespace dledger {

constexpr int kEntryHeaderSize = 48;
constexpr int kChannelAt = 32;
constexpr int kBodyCrcAt = 40;
constexpr int64_t kMaxEntrySize = 4 * 1024 * 1024;
constexpr int32_t kMagicNormal = 1;
constexpr int32_t kMagicNoop = 2;
constexpr int32_t kMagicConfigChange = 3;
constexpr int32_t kMagicBlank = -1;
constexpr int32_t kChannelNoop = 1;
constexpr int32_t kChannelMembers = 2;
constexpr int kChainCrcAt = 36;
constexpr int kMinBlankSize = 8;

struct EntryHeader {
  const uint8_t* p;

  int32_t magic() const { return load_be32(p); }
  int32_t size() const { return load_be32(p + 4); }
  int64_t index() const { return load_be64(p + 8); }
  int64_t term() const { return load_be64(p + 16); }
  int64_t pos() const { return load_be64(p + 24); }
  int32_t channel() const { return load_be32(p + 32); }
  int32_t chain_crc() const { return load_be32(p + kChainCrcAt); }
  int32_t body_crc() const { return load_be32(p + kBodyCrcAt); }
  int32_t body_size() const { return load_be32(p + 44); }
  // The kind of a control entry, 0 for another one, see pyspark_dledger/format/codec.py.
  int32_t control_kind() const {
    const int32_t kind = channel();
    if (kind != kChannelNoop && kind != kChannelMembers) return 0;
    return static_cast<uint32_t>(chain_crc()) == crc32(p, kChainCrcAt) ? kind : 0;
  }
  // Whether the entry has a bodyCrc. That of an empty body is 0.
  bool has_crc() const { return body_crc() != 0 || body_size() == 0; }
  // Whether channel and chainCrc are neither 0 nor those of a control entry, as after a bit flip.
  bool has_wrong_seal() const { return (channel() != 0 || chain_crc() != 0) && control_kind() == 0; }
  const uint8_t* body() const { return p + kEntryHeaderSize; }

  bool is_magic() const {
    const uint32_t magic = load_be32u(p);
    return magic - kMagicNormal <= kMagicConfigChange - kMagicNormal;
  }
};

}  // namespace dledger
