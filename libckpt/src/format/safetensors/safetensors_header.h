#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/folder.h>
#include <ckpt/limits.h>

#include "format/location/location.h"

namespace ckpt {

// safetensors' word for an element type; nullopt where it has none (complex32, complex128).
std::optional<std::string_view> safetensors_dtype_name(DType dtype);

// Where a type stands among them: tensors of higher rank lie first in a file.
int safetensors_dtype_rank(DType dtype);

// Why safetensors cannot hold a tensor of this name and type; nullopt where it can.
std::optional<std::string> safetensors_refusal(std::string_view key, DType dtype);

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;             // one chunk each, in the order of their bytes
  std::map<std::string, std::string> metadata;  // __metadata__
  uint64_t end_bytes = 0;                       // in the file: where the last tensor ends
};

// A safetensors file, or one inside another file:
//
//   u64    length of the header, little-endian, at most 100,000,000
//   JSON   {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}, ...,
//           "__metadata__": {"TEXT": "TEXT", ...}}, then spaces
//   bytes  the tensors without holes; offsets count from the end of the header
//
// Reads the header that starts with `blob`; the tensors must fill the rest of it, or, under
// Limits::allow_missing_data, may reach beyond it. Regions are places in the file. Throws Corrupt
// with the key; Unsupported for element types that torch has not or that are smaller than a byte.
SafetensorsHeader read_safetensors_header(const RandomAccess& file, uint32_t file_index,
                                          ByteRange blob, const Limits& limits);

inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";
inline constexpr std::string_view kSafetensorsIndexSuffix = ".safetensors.index.json";

// A folder with an index, with a single file, or with parts of one checkpoint; a file or an index.
bool find_safetensors_folder(const Folder& source, Location& location);
bool find_safetensors_file(const FileHead& file, Location& location);
Contents read_safetensors_contents(const Location& location, const Limits& limits);

}  // namespace ckpt
