// What was meant by a word that nobody knows.
#include "common/nearest_word.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <ckpt/error.h>

namespace tools {
namespace {

constexpr size_t kLengthMax = 1000;  // of a word that is compared
constexpr size_t kFar = std::numeric_limits<size_t>::max();

using Costs = std::vector<size_t>;

// Damerau-Levenshtein, each letter in one swap at most ("optimal string alignment").
size_t distance(std::string_view a, std::string_view b) {
  Costs before_last, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

size_t distance_max(size_t length) { return std::max<size_t>(1, length / 3); }

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
  if (word.size() < 2 || word.size() > kLengthMax) return std::nullopt;
  const std::string* nearest = nullptr;
  size_t least = kFar;
  for (const std::string& each : known) {
    const size_t gap = std::max(word.size(), each.size()) - std::min(word.size(), each.size());
    const size_t allowed = std::min(distance_max(word.size()), least == kFar ? kFar : least - 1);
    if (least == 0 || gap > allowed) continue;
    const size_t found = distance(word, each);
    if (found > allowed) continue;
    nearest = &each;
    least = found;
  }
  if (nearest != nullptr) return *nearest;
  return only_completion(word, known);
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const auto meant = nearest_word(word, known);
  return meant ? "; did you mean '" + ckpt::escaped(*meant) + "'?" : "";
}

}  // namespace tools
