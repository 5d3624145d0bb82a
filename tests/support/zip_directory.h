// The directory of an archive in the making, with its end records.
#pragma once

#include <span>
#include <string>

#include "codec/zip.h"

namespace test {

inline std::string directory_of(const ckpt::zip::Layout& layout, std::span<const uint32_t> crcs) {
  std::string directory;
  for (size_t member = 0; member < crcs.size(); ++member) {
    directory += layout.central_header(member, crcs[member]);
  }
  return directory + layout.end_records();
}

}  // namespace test
