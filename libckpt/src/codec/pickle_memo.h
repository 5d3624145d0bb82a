#pragma once

#include <ckpt/value.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace ckpt::pickle {

// What PUT stored, by index. Indices come in order from every real writer; one that jumps costs a
// map entry, not memory up to it.
class Memo {
 public:
  uint64_t size() const { return dense_.size() + sparse_.size(); }

  void store(uint64_t index, NodeId id) {
    if (index < dense_.size()) {
      dense_[index] = id;
    } else if (index == dense_.size() && sparse_.empty()) {
      dense_.push_back(id);
    } else {
      sparse_[index] = id;
    }
  }

  std::optional<NodeId> find(uint64_t index) const {
    if (index < dense_.size()) return dense_[index];
    const auto found = sparse_.find(index);
    return found == sparse_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::vector<NodeId> dense_;
  std::unordered_map<uint64_t, NodeId> sparse_;
};

}  // namespace ckpt::pickle
