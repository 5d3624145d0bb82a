#include "execute/file_checksum.h"

#include <algorithm>

#include "codec/crc32.h"

namespace ckpt {

void FileChecksum::add(uint64_t offset_bytes, uint64_t count_bytes, uint32_t crc) {
  segments_.push_back({offset_bytes, count_bytes, crc});
}

uint32_t FileChecksum::whole() {
  std::ranges::sort(segments_, {}, &Segment::offset_bytes);
  uint32_t crc = 0;
  for (const Segment& segment : segments_) {
    crc = crc32_of_both(crc, segment.crc, segment.count_bytes);
  }
  return crc;
}

}  // namespace ckpt
