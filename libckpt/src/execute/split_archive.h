#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "execute/member_composer.h"
#include "format/archive_writer.h"

namespace ckpt {

// What is known of an archive while several workers make pieces of it. Safe to use from many
// threads.
class ArchiveInParts {
 public:
  // `piece_bytes`: members that are longer come in slices of this length.
  ArchiveInParts(const TargetArchive& archive, uint64_t piece_bytes);

  const ArchiveImage& image() const { return image_; }

  void set_member(size_t member, uint32_t crc);
  void set_slice(size_t member, uint64_t offset_bytes, uint32_t crc,
                 std::optional<SoleSource> sole);

  // What no piece wrote, once all pieces are there: headers and descriptors of sliced members, the
  // serialization id, the directory. Throws Corrupt where a source storage is not sound.
  struct Patch {
    uint64_t offset_bytes;  // from the start of the archive
    std::string bytes;
  };
  std::vector<Patch> finish(const PayloadSource& source);

 private:
  struct SlicedMember {
    std::vector<uint32_t> crcs;  // by slice
    std::optional<SoleSource> sole;
  };

  uint32_t whole_crc(size_t member, const SlicedMember& sliced) const;
  void add_frame(size_t member, std::vector<Patch>& patches) const;

  ArchiveImage image_;
  uint64_t piece_bytes_;
  std::mutex mutex_;
  std::vector<uint32_t> crcs_;             // by member
  std::map<size_t, SlicedMember> sliced_;  // by member
};

}  // namespace ckpt
