#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/checkpoint.h>
#include <optim/training_state.h>

// Tensors of the whole model, joined from the parts that ranks hold.
namespace optim {

class TensorParts {
 public:
  // What a rank holds of the tensor `key`: `tensor_rank`, its place among the tensor parallel ranks
  // that may share it. `tensor` must outlive the collection.
  void add(const std::string& key, uint32_t tensor_rank, const ckpt::TensorEntry& tensor);

  // The first part; null: none.
  const ckpt::TensorEntry* first(const std::string& key) const;

  // Of `tensor_ranks` ranks that share it as `sharing` says. Throws Corrupt where a rank's part is
  // missing or of another shape or type than the first one's, Unsupported where it is not known how
  // they share it.
  struct Shared {
    TensorSharing sharing;
    uint32_t tensor_ranks = 1;
  };
  TensorRef join(const std::string& key, const Shared& shared) const;

  // Parts that must be equal, since ranks hold copies: of those, the ones whose bytes differ are
  // Corrupt, by both files. `is_copied`: whether each tensor parallel rank has all of the tensor.
  void compare_copies(const ckpt::Checkpoint& source, const std::string& key, bool is_copied) const;

 private:
  struct Part {
    uint32_t tensor_rank;
    const ckpt::TensorEntry* tensor;
  };
  std::map<std::string, std::vector<Part>> parts_;
};

}  // namespace optim
