#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <optim/layer_wise_checkpoint.h>
#include <optim/verify.h>

#include "layout/state_watch.h"

namespace optim {

// What the tensors of optimizer state must be like. Made before ckpt::verify(), which shows it the
// storages; then finish() says what was seen.
class StateCheck {
 public:
  StateCheck(const ckpt::Checkpoint& checkpoint, VerifyReport& report);

  void see(const ckpt::StoragePiece& piece) { watch_.see(piece); }
  void finish();

 private:
  // The chunks of one tensor, and whether its values must not be below zero.
  struct Scanned {
    const ckpt::TensorEntry* tensor;
    bool not_negative;
    std::vector<size_t> chunks;
  };
  // A master and its weight, by chunks of the same box; none where they are cut differently: such a
  // pair is read once more.
  struct Pair {
    const ckpt::TensorEntry *master, *weight;
    std::vector<std::pair<size_t, size_t>> chunks;
  };

  void name_parameters();
  void add_states();
  void add_pairs();
  void add_pair(const ckpt::TensorEntry& master, const ckpt::TensorEntry& weight);
  bool watch_pair(Pair& pair);
  void add_not_checked();
  void scan_tensor(const Scanned& scanned);
  void compare(const Pair& pair);
  void refuse(const Pair& pair);
  void find(const ckpt::TensorEntry& tensor, std::string problem, std::string hint = {});

  const ckpt::Checkpoint& checkpoint_;
  VerifyReport& report_;
  StateWatch watch_;
  std::optional<LayerWiseCheckpoint> view_;  // of LayerWise checkpoints
  std::vector<Scanned> scanned_;
  std::vector<Pair> pairs_;
};

}  // namespace optim
