#include "base/truncated.h"

#include <utility>

namespace ckpt {

std::string truncated_text(uint64_t found_bytes, std::optional<uint64_t> expected_bytes) {
  const std::string found = std::to_string(found_bytes);
  if (!expected_bytes) return "truncated after " + found + " bytes; copy it again";
  return "truncated: " + found + " of " + std::to_string(*expected_bytes) + " bytes; copy it again";
}

Error truncated(Where where, uint64_t found_bytes, std::optional<uint64_t> expected_bytes) {
  Error error(ErrorCode::Corrupt, std::move(where), truncated_text(found_bytes, expected_bytes));
  error.mark_incomplete();
  return error;
}

}  // namespace ckpt
