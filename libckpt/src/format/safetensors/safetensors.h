#pragma once

#include <string_view>

#include <ckpt/limits.h>

#include "format/location/contents.h"
#include "format/location/location.h"

namespace ckpt {

inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";
inline constexpr std::string_view kSafetensorsIndexSuffix = ".safetensors.index.json";

// A folder with an index, with a single file, or with parts of one checkpoint; a file or an index.
bool find_safetensors_folder(const Folder& source, Location& location);
bool find_safetensors_file(const FileHead& file, Location& location);
Contents read_safetensors_contents(const Location& location, const Limits& limits);

}  // namespace ckpt
