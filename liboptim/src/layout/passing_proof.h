#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/execute.h>
#include <optim/layer_wise_checkpoint.h>

namespace optim {

// Proves which parameter a master belongs to with the bytes that are copied anyway: of all that
// pass by, masters are rounded and summed as their weights are (weight_sum.h). What does not pass,
// or not in whole pairs, is left to prove_rest(). Safe to use from many threads.
class PassingProof {
 public:
  // Both must outlive it.
  PassingProof(const LayerWiseCheckpoint& view, const ckpt::Checkpoint& source);

  // As ExecuteOptions::on_read. Throws as refuse_master().
  void note(const ckpt::StorageRegion& located, uint64_t offset_bytes,
            std::span<const std::byte> bytes);

  // The weight's sum, where all of it and of its master has passed by and agrees. For after the
  // copying. `param`: index into the view's.
  std::optional<uint64_t> proven(size_t param) const;

 private:
  struct Tensor {
    std::atomic<uint64_t> sum = 0;
    std::atomic<uint64_t> passed_elements = 0;
  };
  struct Param {
    uint64_t count = 0;  // of elements; 0: not proven here
    Tensor weight, master;
    bool has_passed() const {
      return weight.passed_elements == count && master.passed_elements == count;
    }
  };
  struct Place {
    size_t param;
    bool is_master;
  };
  using StorageKey = std::pair<uint32_t, uint64_t>;  // file, offset

  void add_place(const ckpt::TensorEntry& tensor, Place place);

  const LayerWiseCheckpoint& view_;
  const ckpt::Checkpoint& source_;
  std::vector<Param> params_;
  std::map<StorageKey, Place> places_;
};

// Error(Corrupt) with file and key: a master that does not round to the weight of its name, or what
// of both is damaged.
[[noreturn]] void refuse_master(const LayerWiseCheckpoint& view, const ckpt::Checkpoint& source,
                                const LayerWiseParam& param);

// prove_assignment() of what has not passed by; `passed` may be null.
std::vector<AmbiguousParam> prove_rest(const LayerWiseCheckpoint& view,
                                       const ckpt::Checkpoint& source, const ProofOptions& options,
                                       const PassingProof* passed);

}  // namespace optim
