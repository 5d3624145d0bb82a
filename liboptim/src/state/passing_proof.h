#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/execute.h>
#include <optim/prove_assignment.h>

#include "state/weight_sum.h"

namespace optim {

// Proves which parameter a master belongs to with the bytes that are copied anyway: of all that
// pass by, in parts that are cut anywhere, masters are rounded and summed as their weights are
// (weight_sum.h). What does not pass is left to prove_rest(). Safe to use from many threads.
class PassingProof {
 public:
  // Both must outlive it.
  PassingProof(const TrainingState& view, const ckpt::Checkpoint& source);

  // As ExecuteOptions::on_read. Throws as refuse_master().
  void note(const ckpt::StorageRegion& located, uint64_t offset_bytes,
            std::span<const std::byte> bytes);

  // The weight's sum, where all of it and of its master has passed by and agrees. For after the
  // copying. `param`: index into the view's.
  std::optional<uint64_t> proven(size_t param) const;

 private:
  struct Tensor {
    uint64_t element_bytes = 0;
    uint64_t count_bytes = 0;
    std::atomic<uint64_t> sum = 0;
    std::atomic<uint64_t> summed_bytes = 0;

    uint64_t pair_bytes() const { return element_bytes * kWeightsPerPair; }
    bool has_passed() const { return summed_bytes == count_bytes; }
  };
  struct Param {
    bool is_watched = false;  // else not proven here
    Tensor weight, master;

    bool has_passed() const { return weight.has_passed() && master.has_passed(); }
  };
  // What has passed of a pair that was cut.
  struct Piece {
    std::array<std::byte, sizeof(float) * kWeightsPerPair> bytes;
    uint64_t count_bytes = 0;
  };
  struct Place {
    size_t param;
    bool is_master;
  };
  using StorageKey = std::pair<uint32_t, uint64_t>;  // file, offset

  void add_place(const ckpt::TensorEntry& entry, Place place);
  // A part that starts at a whole pair, and ends at one or at the tensor's end.
  static void add(Tensor& tensor, uint64_t offset_bytes, std::span<const std::byte> part);
  // A part of one pair.
  void keep(Tensor& tensor, uint64_t offset_bytes, std::span<const std::byte> part);

  const TrainingState& view_;
  const ckpt::Checkpoint& source_;
  std::vector<Param> params_;
  std::map<StorageKey, Place> places_;
  std::mutex mutex_;
  std::map<std::pair<const Tensor*, uint64_t>, Piece> pieces_;  // [tensor, pair]
};

// Error(Corrupt) with file and key: a master that does not round to the weight of its name, or what
// of both is damaged.
[[noreturn]] void refuse_master(const ckpt::Checkpoint& source, const TrainedParam& param);

// prove_assignment() of what has not passed by; `passed` may be null.
std::vector<AmbiguousParam> prove_rest(const TrainingState& view,
                                       const ckpt::Checkpoint& source, const ProofOptions& options,
                                       const PassingProof* passed);

}  // namespace optim
