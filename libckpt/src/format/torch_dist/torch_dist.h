#pragma once

#include <cstdint>
#include <string>

#include <ckpt/limits.h>

#include "format/location/contents.h"
#include "format/location/location.h"

namespace ckpt {

bool is_torch_dist_folder(const Folder& source, Location& location);
Contents read_torch_dist_contents(const Location& location, const Limits& limits);

}  // namespace ckpt
