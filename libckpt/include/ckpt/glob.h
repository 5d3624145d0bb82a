#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/export.h>

namespace ckpt {

// A Unix file name pattern as Python's fnmatch.fnmatchcase() reads it: `*` any characters, also
// dots and slashes, `?` one, `[..]` one of these, `[!..]` one of no others. A character is one of
// UTF-8, or a byte that is none.
class Glob {
 public:
  explicit Glob(std::string_view glob);
  bool matches(std::string_view text) const;

  struct Token {
    enum class Kind : uint8_t { Literal, AnyOne, AnyRun, Set } kind = Kind::Literal;
    char32_t character = 0;
    bool negated = false;
    std::vector<std::pair<char32_t, char32_t>> ranges = {};  // inclusive
  };

 private:
  std::vector<Token> tokens_;
  std::optional<std::string> suffix_;  // all that matters of "*.bias"
};

}  // namespace ckpt
