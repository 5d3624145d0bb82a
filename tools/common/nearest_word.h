#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tools {

// The word of `known` that `word` is most likely a mistake for: ckpt::nearest(), or the only word
// that begins with it.
std::optional<std::string> nearest_word(std::string_view word,
                                        const std::vector<std::string>& known);

// "; did you mean 'WORD'?" escaped, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace tools
