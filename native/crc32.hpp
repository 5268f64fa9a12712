// CRC-32 as java.util.zip.CRC32 and zlib compute it (reflected polynomial 0xEDB88320).
#pragma once

#include <cstddef>
#include <cstdint>

namespace dledger {

// `before` is the CRC of the bytes before these; the result is the CRC of all of them.
uint32_t crc32(const uint8_t* data, size_t length, uint32_t before = 0);

// The portable implementation, for tests on every processor.
uint32_t crc32_portable(const uint8_t* data, size_t length, uint32_t before = 0);

}  // namespace dledger
