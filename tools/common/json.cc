#include "common/json.h"

#include <ckpt/error.h>
#include <common/console.h>

#include <cstdint>
#include <ostream>

namespace tools {
namespace {

// Length of the UTF-8 sequence that starts `text`, 0 if there is none (RFC 3629: no overlong forms,
// no surrogates).
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t index) -> uint32_t { return static_cast<uint8_t>(text[index]); };
  const auto continues = [&](size_t index) { return (byte(index) & 0xC0u) == 0x80u; };
  const uint32_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t index = 1; index < length; ++index) {
    if (!continues(index)) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) > 0x9F) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace

std::string json_text(std::string_view name) {
  return is_utf8(name) ? std::string(name) : ckpt::escaped(name);
}

nlohmann::json json_document() { return {{"schema_version", kJsonSchemaVersion}}; }

void print_json(Console& console, const nlohmann::json& document) {
  console.out() << document.dump(2) << '\n';
}

}  // namespace tools
