#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <training/filed_state.h>
#include <training/opened_training.h>
#include <training/verify.h>

#include "state/not_checked.h"
#include "verify/state_watch.h"

namespace optim {

// What the tensors of optimizer state must be like. Made before ckpt::verify(), which shows it the
// storages; then finish() says what was seen.
class StateCheck {
 public:
  StateCheck(const OpenedTraining& checkpoint, const VerifyOptions& options, VerifyReport& report);

  void see(const ckpt::StoragePiece& piece) { watch_.see(piece); }
  // Null where it is not known which parameter is which.
  const FiledState* state() const { return state_ ? &*state_ : nullptr; }
  // `files`: what this process has looked at, of it `selected` payloads.
  void finish(const std::vector<ckpt::FileAccount>& files, const ckpt::SelectedRegions& selected);

 private:
  // A chunk of a tensor whose values are looked at.
  struct Scanned {
    const ckpt::TensorEntry* tensor;
    const ckpt::Chunk* chunk;
    std::optional<size_t> number;  // in the watch; none where it is no run of bytes
    bool is_state;                 // of an optimizer
    // Of a chunk of a weight that has a master: the weight, as it is named.
    const ckpt::TensorEntry* weight = nullptr;
  };
  // A chunk of a master and the weight's of the same box, as the watch numbers them. None where
  // they are cut differently: such tensors are read once more, as a whole.
  struct Pair {
    const ckpt::TensorEntry *master, *weight;
    const ckpt::Chunk *master_chunk, *weight_chunk;
    std::optional<std::pair<size_t, size_t>> numbers;
  };

  void name_parameters();
  void note_flat_state();
  void note_remainders();
  bool is_remainder(const ckpt::TensorEntry& tensor) const;
  bool is_named_buffer(const ckpt::TensorEntry& tensor) const;
  void add_states();
  bool add_state(const ckpt::TensorEntry& tensor);
  void add_not_looked_at(uint64_t other_count);
  // By file, place of the storage, place in it.
  using Weights = std::map<std::tuple<uint32_t, uint64_t, uint64_t>, const ckpt::TensorEntry*>;
  void list(const ckpt::TensorEntry& tensor, const Weights& weights);
  void list_others();
  std::optional<ValueScan> read_values(const Scanned& scanned) const;
  void add_pairs();
  void add_named_pairs();
  void add_pairs_of_state();
  void list_frozen();
  void add_pair(const ckpt::TensorEntry& master, const ckpt::TensorEntry& weight);
  std::vector<Pair> watch_pairs(const ckpt::TensorEntry& master, const ckpt::TensorEntry& weight);
  bool watch(Pair pair, std::vector<Pair>& pairs);
  bool cut_alike(const ckpt::TensorEntry& master, const ckpt::TensorEntry& weight,
                 std::vector<Pair>& pairs);
  bool are_all_named() const;
  void add_not_checked();
  bool is_own(const ckpt::Chunk& chunk) const;
  const ckpt::StorageRegion& stored_region(const ckpt::Chunk& chunk) const;
  void look_at(const Scanned& scanned);
  void look_for_zero_moments();
  void look_for_known_issues();
  // True where the values are what they may be.
  bool look_at_values(const Scanned& scanned, const ValueScan& values);
  // Whether a checksum says so: what is wrong with the values is then no finding of its own.
  bool has_wrong_checksum(const ckpt::TensorEntry& tensor, const ckpt::Chunk& chunk) const;
  void compare(const Pair& pair);
  void see_weight(const Pair& pair);
  void refuse(const Pair& pair);  // or, looked at once more, count as a match
  void find(const ckpt::TensorEntry& tensor, const ckpt::Chunk& chunk, std::string problem,
            std::string hint = {});

  const OpenedTraining& checkpoint_;
  VerifyReport& report_;
  ObjectTensors in_objects_;
  NonfiniteValues nonfinite_;
  StateWatch watch_;
  std::optional<FiledState> state_;                       // where parameters have names
  std::set<std::pair<uint32_t, uint64_t>> flat_regions_;  // of buffers that the state takes apart
  std::vector<const TrainedParam*> flat_params_;          // whose state they hold
  std::set<std::pair<uint32_t, uint64_t>> remainder_regions_;  // that hold remainders of masters
  std::deque<ckpt::Chunk> cut_;                                // of pairs that are not stored alike
  std::vector<Scanned> scanned_;
  std::vector<Pair> pairs_;
  std::vector<ckpt::FileAccount> own_;  // by index into Catalog::files
  // Why weights may be something else than their rounded masters; then that is no damage.
  std::optional<std::string> other_rounding_;
  std::set<std::string> mismatched_;  // weights whose masters do not round to them
  LeftOut not_compared_{"master"}, without_master_{"weight"}, differing_{"weight"};
  LeftOut with_remainder_{"weight"};
};

}  // namespace optim
