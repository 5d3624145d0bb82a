// What was meant by a word that nobody knows.
#include "common/nearest_word.h"

#include <algorithm>

#include <ckpt/error.h>
#include <ckpt/nearest.h>

namespace tools {
namespace {

// The rest of a word that was begun: only where one alone fits.
std::optional<std::string> only_completion(std::string_view word,
                                           const std::vector<std::string>& known) {
  const auto completes = [&](const std::string& each) { return each.starts_with(word); };
  if (word.size() < 2 || std::ranges::count_if(known, completes) != 1) return std::nullopt;
  return *std::ranges::find_if(known, completes);
}

}  // namespace

std::optional<std::string> nearest_word(std::string_view word,
                                        const std::vector<std::string>& known) {
  if (word.size() < 2) return std::nullopt;
  const auto nearest = ckpt::nearest(word, known);
  return nearest ? nearest : only_completion(word, known);
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const auto meant = nearest_word(word, known);
  return meant ? "; did you mean '" + ckpt::escaped(*meant) + "'?" : "";
}

}  // namespace tools
