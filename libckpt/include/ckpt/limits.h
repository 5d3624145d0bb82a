#pragma once

#include <cstdint>

namespace ckpt {

// Every bound that libckpt puts on what a file may ask for. Pass a changed copy to
// Checkpoint::open.
struct Limits {
  uint64_t pickle_bytes_max = uint64_t{8} << 30;         // one pickle stream (.metadata, data.pkl)
  uint64_t pickle_nodes_max = uint64_t{1} << 31;         // values in one pickle stream
  uint64_t zip_entries_max = uint64_t{1} << 26;          // members of one torch.save archive
  uint64_t zip_directory_bytes_max = uint64_t{4} << 30;  // central directory of one archive
  uint64_t small_file_bytes_max = uint64_t{1} << 20;     // metadata.json, tracker
  uint64_t manifest_bytes_max = uint64_t{256} << 20;     // integrity.json
  uint64_t safetensors_header_bytes_max = 100'000'000;   // the format's own rule
  uint64_t inflated_object_bytes_max = uint64_t{1} << 30;  // a compressed entry that is no tensor
  uint64_t dims_max = 64;  // dimensions of one tensor (torch's own limit)
  // Whether links in a checkpoint's folder may lead out of it. A file that was named itself is read
  // wherever it lies.
  bool follow_links = false;
  // Whether files that .metadata, an index or a folder of ranks names may be missing or end early
  // (FileEntry::lack): to look at what a checkpoint holds, not at its values. Tensors that only a
  // lacking file describes are not listed.
  bool allow_missing_data = false;
};

}  // namespace ckpt
