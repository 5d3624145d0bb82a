#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tools {

// The word of `known` that `word` is most likely a mistake for: the fewest insertions, deletions,
// changes and swaps of neighbours away, at most one for every three letters; or the only word that
// begins with it. The first of equals. For words that people type: time grows with the product of
// the lengths.
std::optional<std::string> nearest_word(std::string_view word,
                                        const std::vector<std::string>& known);

// "; did you mean 'WORD'?" escaped, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace tools
