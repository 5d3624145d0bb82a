// The key that somebody may have meant who typed one that is not there.
#include <algorithm>
#include <numeric>

#include <ckpt/error.h>
#include <ckpt/key_pattern.h>

namespace ckpt {
namespace {

constexpr size_t kKeysMax = 100'000;
constexpr size_t kTypedBytesMax = 256;
constexpr size_t kDifferencesMax = 8;
constexpr size_t kHeldBytesMin = 3;  // less is in every key

// What one word has to have changed, inserted or left out to be the other; `limit` + 1 where that
// is more than `limit`.
size_t difference_count(std::string_view a, std::string_view b, size_t limit) {
  const auto [a_front, b_front] = std::ranges::mismatch(a, b);
  a.remove_prefix(static_cast<size_t>(a_front - a.begin()));
  b.remove_prefix(static_cast<size_t>(b_front - b.begin()));
  const size_t shorter = std::min(a.size(), b.size());
  if (std::max(a.size(), b.size()) - shorter > limit) return limit + 1;
  std::vector<size_t> row(b.size() + 1);  // of one front of a, and each front of b
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    size_t least = ++row[0];
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
      least = std::min(least, row[j + 1]);
    }
    if (least > limit) return limit + 1;
  }
  return row.back();
}

std::string qualified(const KeyName& name) {
  return (name.file.empty() ? "" : std::string(name.file) + ":") + std::string(name.key);
}

std::string printed(const KeyName& name) {
  const std::string key = printed_key(name.key);
  return name.file.empty() ? key : escaped(name.file) + ":" + key;
}

}  // namespace

std::optional<std::string> nearest_key(std::string_view typed, std::span<const KeyName> keys) {
  const std::string wanted = folded_key(typed);
  if (wanted.empty() || wanted.size() > kTypedBytesMax) return std::nullopt;
  const bool names_file = typed.find(':') != typed.npos;
  const KeyName* nearest = nullptr;
  size_t limit = std::min(kDifferencesMax, wanted.size() / 3);
  for (const KeyName& name : keys.first(std::min(keys.size(), kKeysMax))) {
    if (name.key.size() > 2 * kTypedBytesMax) continue;
    const std::string key = folded_key(names_file ? qualified(name) : std::string(name.key));
    if (wanted.size() >= kHeldBytesMin && key.find(wanted) != key.npos) return printed(name);
    const size_t differences = difference_count(wanted, key, limit);
    if (differences > limit) continue;
    nearest = &name;
    if (differences == 0) break;  // in another file
    limit = differences - 1;
  }
  return nearest == nullptr ? std::nullopt : std::optional(printed(*nearest));
}

void refuse_unknown_key(const std::string& typed, std::span<const KeyName> keys) {
  const auto nearest = nearest_key(typed, keys);
  throw Error(ErrorCode::NotFound, {.file = {}, .key = typed}, "no tensor or object has this key",
              nearest ? "did you mean '" + *nearest + "'?" : "");
}

}  // namespace ckpt
