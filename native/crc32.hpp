// CRC-32 as java.util.zip.CRC32 and zlib compute it (reflected polynomial 0xEDB88320).
#pragma once

#include <cstddef>
#include <cstdint>

namespace dledger {

uint32_t crc32(const uint8_t* data, size_t length);

// The portable engine alone, so that tests reach it on every processor.
uint32_t crc32_portable(const uint8_t* data, size_t length);

}  // namespace dledger
