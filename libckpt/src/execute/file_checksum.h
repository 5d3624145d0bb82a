#pragma once

#include <cstdint>
#include <vector>

namespace ckpt {

// The CRC-32 of a file that is written in pieces, in any order, each byte once.
class FileChecksum {
 public:
  void add(uint64_t offset_bytes, uint64_t count_bytes, uint32_t crc);
  // All pieces, one after the other.
  uint32_t whole();

 private:
  struct Segment {
    uint64_t offset_bytes, count_bytes;
    uint32_t crc;
  };
  std::vector<Segment> segments_;
};

}  // namespace ckpt
