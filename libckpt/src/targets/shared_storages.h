#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/text_map.h"
#include "targets/plain_state.h"

namespace ckpt {

// Tensors that view one storage of a torch.save file become copies; says so.
class SharedStorages {
 public:
  SharedStorages(std::string_view target, std::vector<NotCarried>& notes)
      : target_(target), notes_(notes) {}

  void note(const PlainEntry& entry) {
    const StorageRegion& region = entry.tensor->chunks.front().region;
    const std::string place =
        std::to_string(region.file) + "@" + std::to_string(region.bytes.offset_bytes);
    if (entry.tensor->chunks.size() > 1 || region.bytes.count_bytes == 0) return;
    if (places_.insert(place).second) return;
    notes_.push_back({"storage of " + entry.key,
                      "shared with another tensor; " + target_ + " stores a copy of each",
                      std::nullopt, true});
  }

 private:
  std::string target_;
  std::vector<NotCarried>& notes_;
  TextSet places_;
};

inline TensorSource whole_of(const PlainEntry& entry) {
  return {entry.tensor, whole(entry.tensor->shape)};
}

}  // namespace ckpt
