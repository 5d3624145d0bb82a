#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <ckpt/plan.h>
#include <ckpt/target.h>

#include "execute/payload_reader.h"
#include "execute/source_checker.h"
#include "format/archive_writer.h"

namespace ckpt {

// An archive of the target with the part of the plan that fills it.
struct ArchiveToWrite {
  const TargetArchive& archive;
  const ArchiveImage& image;
  std::span<const RecordPlan> records;
};

// A storage of the source that is a record of the target byte for byte: while the record is made
// its checksum shows whether the storage is sound.
struct SoleSource {
  StorageRegion storage;
  std::string key;
};
void check_sole_source(const SoleSource& sole, uint32_t crc, const PayloadSource& source);

// Where payload comes from, and one worker's memory to read it through.
struct ReadContext {
  const PayloadSource& source;
  SourceChecker& checker;
  ScratchBuffer& scratch;
};

// Makes the bytes of an archive's members from what the source holds.
class MemberComposer {
 public:
  MemberComposer(const ArchiveToWrite& target, const ReadContext& context)
      : target_(target), context_(context) {}

  // Fills `out` with the member's data from `offset_bytes` on. A storage of the source that is the
  // member as a whole is returned, and its checksum left to the caller; other storages are checked
  // before they are read. Not for the serialization id.
  std::optional<SoleSource> read_data(size_t member, uint64_t offset_bytes,
                                      std::span<std::byte> out) const;

  // Fills `out` with header, data and descriptor of a member, and returns the data's CRC-32.
  // `crcs`: of the members before it.
  uint32_t compose(size_t member, std::span<const uint32_t> crcs, std::span<std::byte> out) const;

 private:
  std::optional<SoleSource> read_tensor(size_t record, uint64_t offset_bytes,
                                        std::span<std::byte> out) const;
  SoleSource read_storage(size_t record, uint64_t offset_bytes, std::span<std::byte> out) const;

  const ArchiveToWrite& target_;
  const ReadContext& context_;
};

}  // namespace ckpt
