#include "base/text.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/nearest.h>

// nearest(): optimal string alignment (Levenshtein with transpositions), for mistyped names.

namespace ckpt {
namespace {

// Lead byte -> length and the bits that it carries (Unicode 15, table 3-6).
Utf8Char lead(uint8_t byte) {
  if (byte < 0x80) return {byte, 1};
  if (byte >= 0xC2 && byte <= 0xDF) return {byte & 0x1Fu, 2};
  if (byte >= 0xE0 && byte <= 0xEF) return {byte & 0x0Fu, 3};
  if (byte >= 0xF0 && byte <= 0xF4) return {byte & 0x07u, 4};
  return {};
}

}  // namespace

void append_hex(std::string& text, uint64_t number, int count_digits) {
  for (int i = count_digits; i-- > 0;) text += "0123456789abcdef"[number >> (4 * i) & 15];
}

Utf8Char first_utf8_char(std::string_view text) {
  static constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800,
                                           0x10000};  // by length: no overlong forms
  Utf8Char result = lead(static_cast<uint8_t>(text[0]));
  if (result.count_bytes == 0 || result.count_bytes > text.size()) return {};
  for (unsigned i = 1; i < result.count_bytes; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if ((byte & 0xC0) != 0x80) return {};
    result.code_point = result.code_point << 6 | (byte & 0x3Fu);
  }
  const uint32_t c = result.code_point;
  const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
  if (c < kSmallest[result.count_bytes] || surrogate || c > 0x10FFFF) return {};
  return result;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char next = first_utf8_char(text);
    if (next.count_bytes == 0) return false;
    text.remove_prefix(next.count_bytes);
  }
  return true;
}

std::string head_of(const RandomAccess& file, uint64_t count_bytes_max) {
  std::string head(std::min(file.size_bytes(), count_bytes_max), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  return head;
}

std::string all_of(const RandomAccess& file, uint64_t count_bytes_max) {
  if (file.size_bytes() <= count_bytes_max) return head_of(file, count_bytes_max);
  throw Error(ErrorCode::Unsupported, {file.file_name()},
              std::to_string(file.size_bytes()) + " bytes, the limit is " +
                  std::to_string(count_bytes_max));
}

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
