// Slices as Python's basic indexing has them, read like torch reads them.
#include <ckpt/slice.h>

#include <algorithm>
#include <cctype>
#include <limits>

#include <ckpt/error.h>
#include <ckpt/printed.h>

#include "base/text.h"

namespace ckpt {
namespace {

// No tensor is as long, but for one without elements: what is beyond it is left out of account.
constexpr int64_t kIndexMax = std::numeric_limits<int64_t>::max() / 2;
constexpr std::string_view kSliceCharacters = "0123456789:,.-+ ";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(trimmed(text.substr(0, end)));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

class SliceParser {
 public:
  SliceParser(std::string_view text, const Extents& shape) : text_(text), shape_(shape) {}

  Slice run() {
    std::vector<std::string_view> items = split(text_, ',');
    if (items.size() > 1 && items.back().empty()) items.pop_back();  // [0,]
    const auto dots = std::ranges::count(items, "...");
    if (dots > 1) refuse("may have only one '...'");
    const size_t given = items.size() - static_cast<size_t>(dots);
    if (given > shape_.size()) {
      refuse("has " + std::to_string(given) + " indices, the tensor " +
             std::to_string(shape_.size()) + " dimensions");
    }
    for (const std::string_view item : items) {
      if (item == "...") {
        for (size_t left = shape_.size() - given; left > 0; --left) take_all();
      } else {
        take(item);
      }
    }
    while (slice_.dims.size() < shape_.size()) take_all();
    return std::move(slice_);
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    throw Error(
        ErrorCode::InvalidArgument, {},
        "the slice [" + escaped(text_) + "] " + problem + "; the shape is " + shape_text(shape_),
        "slices are as torch has them: '[0]', '[-1]', '[0:4, :8]', '[..., ::2]'");
  }

  int64_t size() const {
    const uint64_t size = shape_[slice_.dims.size()];
    return static_cast<int64_t>(std::min(size, static_cast<uint64_t>(kIndexMax)));
  }

  void take_all() { slice_.dims.push_back({0, 1, shape_[slice_.dims.size()], false}); }

  void take(std::string_view item) {
    const std::vector<std::string_view> parts = split(item, ':');
    if (parts.size() > 3) refuse("has more than start:stop:step in '" + escaped(item) + "'");
    if (parts.size() == 1) return take_index(item);
    const auto size = this->size();
    const auto bound = [&](std::string_view text, int64_t otherwise) {
      if (text.empty()) return otherwise;
      const int64_t given = number(text);
      return std::clamp(given < 0 ? given + size : given, int64_t{0}, size);
    };
    const int64_t start = bound(parts[0], 0), stop = bound(parts[1], size);
    const bool has_step = parts.size() == 3 && !parts[2].empty();
    const int64_t step = has_step ? number(parts[2]) : 1;
    if (step < 1) refuse("has the step " + std::to_string(step) + "; steps are 1 and more");
    const int64_t count = stop > start ? (stop - start - 1) / step + 1 : 0;
    slice_.dims.push_back({static_cast<uint64_t>(start), static_cast<uint64_t>(step),
                           static_cast<uint64_t>(count), false});
  }

  void take_index(std::string_view item) {
    const auto size = this->size();
    const int64_t index = number(item);
    if (index < -size || index >= size) {
      refuse("has the index " + std::string(item) + " out of range in dimension " +
             std::to_string(slice_.dims.size()));
    }
    const int64_t start = index < 0 ? index + size : index;
    slice_.dims.push_back({static_cast<uint64_t>(start), 1, 1, true});
  }

  // Of more digits than 64 bits have room for, the largest there is.
  int64_t number(std::string_view text) const {
    const bool is_negative = text.starts_with('-');
    const std::string_view digits = text.substr(is_negative || text.starts_with('+') ? 1 : 0);
    const bool is_number = !digits.empty() && std::ranges::all_of(digits, [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    if (!is_number) {
      refuse("has '" + escaped(text) + "'; expected integers, start:stop:step and '...'");
    }
    const int64_t value = std::min(number_in<int64_t>(digits).value_or(kIndexMax), kIndexMax);
    return is_negative ? -value : value;
  }

  std::string_view text_;
  const Extents& shape_;
  Slice slice_;
};

}  // namespace

Extents Slice::shape() const {
  Extents shape;
  for (const SliceDim& dim : dims) {
    if (!dim.is_index) shape.push_back(dim.count);
  }
  return shape;
}

Slice whole_slice(const Extents& shape) { return SliceParser("...", shape).run(); }

Slice parse_slice(std::string_view text, const Extents& shape) {
  return SliceParser(text, shape).run();
}

std::optional<SlicedKey> split_slice(std::string_view typed) {
  const size_t open = typed.rfind('[');
  if (open == typed.npos || open == 0 || !typed.ends_with(']')) return std::nullopt;
  const std::string_view slice = typed.substr(open + 1, typed.size() - open - 2);
  return SlicedKey{std::string(typed.substr(0, open)), std::string(slice),
                   slice.find_first_not_of(kSliceCharacters) == slice.npos};
}

}  // namespace ckpt
