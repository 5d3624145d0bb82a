#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/target.h>

namespace ckpt {

// Where the payloads of an archive lie once it is written, in bytes from the start of the archive.
struct ArchiveLayout {
  std::vector<ByteRange> records;  // as TargetArchive::records
  // From here on checksums of all records are stated; the end where none are.
  uint64_t closing_offset_bytes = 0;
  uint64_t count_bytes = 0;        // of the whole archive
};

// Pure. Throws InvalidArgument where the archive cannot be written: a name of more than 65,500
// bytes, more than 2^62 bytes, a BareTensor without exactly one record.
CKPT_EXPORT ArchiveLayout archive_layout(const TargetArchive& archive);

}  // namespace ckpt
