#pragma once

#include <string>
#include <string_view>

namespace ckpt {

// What a file is for that programs are known to put beside a plain checkpoint, by its name; empty
// where it is not known. Told from the name alone: what is in it is looked at elsewhere.
std::string_view known_beside(const std::string& name);

}  // namespace ckpt
