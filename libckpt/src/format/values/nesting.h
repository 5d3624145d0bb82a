#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ckpt/document.h>
#include <ckpt/error.h>

#include "codec/python_values.h"

namespace ckpt {

using pickle::as_mapping;

// Which values torch.distributed.checkpoint enters when it flattens a state dict: mappings always,
// lists where they hold a tensor, a mapping, or a list that is entered; tuples never. For one tree.
class Nesting {
 public:
  bool is_entered(const Value& list);

 private:
  struct Search {
    Value list;
    size_t next = 0;
  };
  bool holds_leaf(const Value& list) const;
  void advance(Search& search, std::optional<Value>& unknown);

  std::unordered_map<NodeId, bool> entered_;  // by list; false while it is being searched
};

// How a place of a nested state dict is named where nothing nests, in the keys of DCP and of
// safetensors: the steps from the root, joined by '.', as torch.distributed.checkpoint joins them.
// Not reversible: a step may hold dots itself.
class FlatName {
 public:
  void enter(std::string_view step) {
    if (!is_root_) text_ += '.';
    text_ += step;
    is_root_ = false;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  bool is_root_ = true;
};

// One step of an RFC 6901 pointer: '~' and '/' inside it are written ~0 and ~1.
inline std::string pointer_step(std::string_view text) {
  std::string step = "/";
  for (const char c : text) {
    if (c == '~') {
      step += "~0";
    } else if (c == '/') {
      step += "~1";
    } else {
      step += c;
    }
  }
  return step;
}

// What pointer_step() wrote, without its '/'.
inline std::string step_text(std::string_view step) {
  std::string text;
  for (size_t i = 0; i < step.size(); ++i) {
    const bool is_escape = step[i] == '~' && i + 1 < step.size();
    text += !is_escape ? step[i] : step[++i] == '1' ? '/' : '~';
  }
  return text;
}

// The FlatName of a place by its pointer.
inline std::string flat_name(std::string_view pointer) {
  FlatName name;
  for (size_t end = 0; end < pointer.size();) {
    const size_t begin = end + 1;
    end = std::min(pointer.find('/', begin), pointer.size());
    name.enter(step_text(pointer.substr(begin, end - begin)));
  }
  return name.take();
}

// Where a depth-first search is. A place keeps only its own step and how long its parent's pointer
// is: a million nested lists would cost a million times their depth, if each had a pointer of its
// own. Deep or long names that are asked for again and again end in Unsupported.
class PointerPath {
 public:
  struct Step {
    size_t parent_bytes = 0;
    std::string text;  // as pointer_step() writes it; empty at the root
  };

  // From here on size(), text() and whole() are those of this place. Its parent must have been
  // entered before, and since then only places below the parent.
  void enter(const Step& step) {
    text_.resize(step.parent_bytes);
    text_ += step.text;
    spend(step.text.size());
  }

  size_t size() const { return text_.size(); }
  Step child(size_t index) const { return {size(), "/" + std::to_string(index)}; }
  Step child(std::string_view key) const { return {size(), pointer_step(key)}; }

  std::string whole() {
    spend(text_.size());
    return text_;
  }
  // For an error: enough to find the place.
  std::string shortened() const {
    constexpr size_t kShownBytesMax = 1000;
    return text_.size() <= kShownBytesMax ? text_ : text_.substr(0, kShownBytesMax) + "...";
  }

 private:
  static constexpr uint64_t kBytesMax = uint64_t{1} << 30;

  void spend(uint64_t count_bytes) {
    spent_bytes_ += count_bytes;
    if (spent_bytes_ <= kBytesMax) return;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = shortened()},
                "the names of all values take more than a gigabyte");
  }

  std::string text_;
  uint64_t spent_bytes_ = 0;
};

}  // namespace ckpt
