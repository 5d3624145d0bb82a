#pragma once

#include <cstdint>
#include <string_view>

namespace ckpt {

enum class JsonFault : uint8_t { None, Cut, Malformed };

// Whether a text is JSON as Python writes it, with NaN and Infinity; what it says is not kept.
struct JsonScan {
  JsonFault fault = JsonFault::None;
  uint64_t offset_bytes = 0;  // of the fault
};
JsonScan scan_json(std::string_view text);

}  // namespace ckpt
