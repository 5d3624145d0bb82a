// How a place of a nested state dict is named where nothing nests: in the keys of DCP and of
// safetensors.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace ckpt {

// The steps from the root, joined by '.', as torch.distributed.checkpoint joins them. Not
// reversible: a step may hold dots itself.
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

}  // namespace ckpt
