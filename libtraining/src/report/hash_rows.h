#pragma once

#include <string>
#include <string_view>

#include <ckpt/hash.h>

namespace optim {

// "SHA-256 DTYPE SHAPE": what a HashRecord says of an entry.
inline std::string entry_text(std::string_view hash, std::string_view dtype,
                              std::string_view shape) {
  return std::string(hash).append(" ").append(dtype).append(" ").append(shape);
}

ckpt::Sha256 sha256_of(std::string_view hex);  // zero where the text is none

}  // namespace optim
