#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/verify.h>
#include <training/filed_state.h>
#include <training/opened_training.h>
#include <training/verify.h>

#include "state/not_checked.h"
#include "state/value_scan.h"
#include "state/watched_ranges.h"

namespace optim {

// Looks at the values of storages while ckpt::verify() reads them.
class StateWatch {
 public:
  // Which weights a tensor is summed as (weight_sum.h): float32 masters as what they round to.
  using SummedAs = std::optional<ckpt::DType>;

  struct Watched {
    ckpt::DType dtype = ckpt::DType::Float32;
    uint64_t begin_bytes = 0, count_bytes = 0;  // in the storage
    Wanted wanted = Wanted::Anything;
    SummedAs summed_as = std::nullopt;
    // What was seen.
    ValueScan values = {};
    uint64_t weight_sum = 0;
    uint64_t seen_bytes = 0;
    bool is_zero = true;  // all that was seen
  };

  // A chunk that is a run of bytes of its storage, row-major; nullopt for others, and for one that
  // is to be summed and starts within a pair of words. A chunk that is added again is watched once,
  // for both reasons.
  std::optional<size_t> add(const ckpt::Chunk& chunk, ckpt::DType dtype, Wanted wanted,
                            SummedAs summed_as = std::nullopt);
  void put_in_order() { ranges_.put_in_order(); }  // after the last was added
  void see(const ckpt::StoragePiece& piece);       // thread-safe from then on

  // Whether something was added for a storage, and all of it was seen and is 0.
  bool is_zero(const ckpt::StorageRegion& region) const;

  const Watched& operator[](size_t number) const { return watched_[number]; }
  // All of its bytes came by: the storage is as long as it must be, and was readable.
  bool is_seen(size_t number) const {
    return watched_[number].seen_bytes == watched_[number].count_bytes;
  }

 private:
  using Place = std::pair<uint32_t, uint64_t>;  // file, start of the region
  void see(Watched& watched, uint64_t begin_bytes, std::span<const std::byte> bytes);

  // The start of a range, its length, its type: what is watched once.
  using Range = std::tuple<uint64_t, uint64_t, ckpt::DType>;

  WatchedStorages<size_t> ranges_;
  std::map<std::pair<Place, Range>, size_t> known_;
  std::vector<Watched> watched_;
  std::mutex mutex_;
};

struct ObjectTensors {
  std::deque<ckpt::TensorEntry> tensors;
  // Of compressed objects: where they are stored, by the number that their chunks have for a file.
  std::map<uint32_t, ckpt::StorageRegion> compressed;
};

// Tensors of floating point in objects of a DCP folder, which torch.save files have in their
// catalogs. None of Megatron's, whose objects hold random states and bytes.
ObjectTensors tensors_in_objects(const OpenedTraining& checkpoint);

// Says what NaN and infinities in a tensor are: damage in a model's or an optimizer's, unless they
// are allowed or a mask; a note elsewhere.
class NonfiniteValues {
 public:
  // `allowed`: globs over keys, as --include takes them; `more`: tensors that are in no catalog.
  NonfiniteValues(const OpenedTraining& checkpoint, const std::vector<std::string>& allowed,
                  const std::deque<ckpt::TensorEntry>& more, VerifyReport& report);

  // Of values of a tensor, which are at `place`. False where that is damage.
  bool tell(const ckpt::TensorEntry& tensor, const ckpt::Where& place, const ValueScan& values);

 private:
  void see(const ckpt::TensorEntry& tensor);
  // Whether a tensor is a model's or an optimizer's (docs/verify.md, "NaN and infinity"): all but
  // those that lie beside the model in a training loop's file, as far as their place says that they
  // are something else.
  bool is_trained(const ckpt::TensorEntry& tensor) const;
  bool is_mask(const ckpt::TensorEntry& tensor) const;

  const OpenedTraining& checkpoint_;
  VerifyReport& report_;
  bool has_loop_ = false;       // some mapping of the file is named as a model or an optimizer is
  bool has_optimizer_ = false;  // the same of an optimizer
  bool may_allow_;
  ckpt::KeySelection allowed_;
  std::set<std::pair<std::string, std::string>> allowed_tensors_;  // in which something was
};

// Where a finding about a chunk is.
ckpt::Where place_of(const OpenedTraining& checkpoint, const ckpt::TensorEntry& tensor,
                     const ckpt::Chunk& chunk);
// A chunk as a tensor of its own.
ckpt::TensorEntry chunk_alone(const ckpt::TensorEntry& tensor, ckpt::Chunk chunk);
// "1 value is NaN, at index 3".
std::string text_of(const Unwanted& unwanted, std::string_view what);

// Weights of 16 bits that float32 masters of their shape do not round to.
Unwanted count_mismatches(const ckpt::TensorEntry& master, const OpenedTraining& source,
                          const ckpt::TensorEntry& weight, const OpenedTraining& of_weight);
std::string text_of_mismatch(const Unwanted& mismatch, uint64_t count);

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
  void note_own_masters();
  void note_flat_state();
  void note_remainders();
  bool is_remainder(const ckpt::TensorEntry& tensor) const;
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
  // A weight under two keys has its master under one; who read the state compared both weights.
  void add_other_names(std::set<std::string>& with_master) const;
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
  std::vector<const ckpt::TensorEntry*> own_masters_;     // weights that equal their stored masters
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
