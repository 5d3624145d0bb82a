#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <training/opened_training.h>
#include <training/training_state.h>

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
  void compare_copies(const OpenedTraining& source, const std::string& key, bool is_copied) const;

 private:
  struct Part {
    uint32_t tensor_rank;
    const ckpt::TensorEntry* tensor;
  };
  std::map<std::string, std::vector<Part>> parts_;
};

// A box of a chunk, as a chunk: by offset where it is a run of the chunk's elements, else by
// strides. `box` lies in the chunk's.
ckpt::Chunk part_of(const ckpt::Chunk& chunk, const ckpt::Box& box, ckpt::DType dtype);

// Whether two tensors of one shape and type hold the same bytes; read only where checksums do not
// tell.
bool are_equal(const ckpt::TensorEntry& a, const ckpt::TensorEntry& b,
               const OpenedTraining& source);

}  // namespace optim
