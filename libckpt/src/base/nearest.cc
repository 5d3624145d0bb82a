// Optimal string alignment (Levenshtein with transpositions), for names that were mistyped.
#include <ckpt/nearest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace ckpt {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool are_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (are_swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = std::exchange(last, row);
  }
  return last[b.size()];
}

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  constexpr size_t kNameBytesMax = 255;  // longer words are not names
  if (word.size() > kNameBytesMax) return std::nullopt;
  std::optional<std::string> best;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(word.size(), candidate.size());
    const size_t shorter = std::min(word.size(), candidate.size());
    if (candidate.size() > kNameBytesMax || longer - shorter >= least || shorter == 0) continue;
    const size_t distance = edit_distance(word, candidate);
    if (distance >= least || distance >= longer) continue;
    least = distance;
    best = candidate;
  }
  return best;
}

}  // namespace ckpt
