#pragma once

#include <string>
#include <string_view>

namespace ckpt {

// One step of an RFC 6901 pointer: '~' and '/' inside it are written ~0 and ~1.
inline std::string pointer_step(std::string_view text) {
  std::string step = "/";
  for (const char c : text) {
    if (c == '~') {
      step += "~0";
    } else if (c == '/') {
      step += "~1";
    } else {
      step += c;
    }
  }
  return step;
}

}  // namespace ckpt
