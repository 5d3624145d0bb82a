#pragma once

#include <string_view>

#include <ckpt/limits.h>

#include "format/location/contents.h"
#include "format/location/location.h"

namespace ckpt {

inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";
inline constexpr std::string_view kSafetensorsIndexSuffix = ".safetensors.index.json";

Contents read_safetensors_contents(const Location& location, const Limits& limits);

}  // namespace ckpt
