#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include <ckpt/box.h>
#include <ckpt/execute.h>
#include <training/prove_assignment.h>
#include <training/training_state.h>

#include "state/value_scan.h"
#include "state/watched_ranges.h"

namespace optim {

// A weight and its master, box by box, whoever cut them where: a chunk of both, where ranks cut
// both alike; else what several chunks of the one and of the other make up together, as the two
// halves of a gated weight do, and the ranges of a flat buffer that two ranks share.
struct RunOfBox {
  const ckpt::Chunk* chunk = nullptr;
  uint64_t first = 0;  // of the box's elements, row-major, of which the chunk is one run
};

struct ComparedBox {
  ckpt::Box box;
  std::vector<RunOfBox> weights, masters;  // each without a gap
};

// Disjoint, in their order. nullopt where some chunk is not a run of the box it is in. `param` has
// a master.
std::optional<std::vector<ComparedBox>> compared_boxes(const TrainedParam& param);

// One number for the sums of several boxes, whose order counts.
uint64_t joined_sum(uint64_t sum, uint64_t of_box);

// Proves which parameter a master belongs to with the bytes that are copied anyway: of all that
// pass by, in parts that are cut anywhere, masters are rounded and summed as their weights are
// (weight_sum.h), box by box (compared_boxes.h). What does not pass is left to prove_rest(). Safe
// to use from many threads: one mutex guards what has passed of pairs that were cut; sums are
// atomic.
class PassingProof {
 public:
  // Both must outlive it.
  PassingProof(const FiledState& state, const ckpt::Checkpoint& source);

  // As ExecuteOptions::on_read. Throws as refuse_master().
  void note(const ckpt::StorageRegion& located, uint64_t offset_bytes,
            std::span<const std::byte> bytes);

  // The weight's sum, where all of it and of its master has passed by and agrees. For after the
  // copying. `param`: index into the state's.
  std::optional<uint64_t> proven(size_t param) const;
  // The same of one of its compared_boxes(), where only some have passed, as of a vocabulary of
  // which a whole chunk is padding.
  std::optional<uint64_t> proven_box(size_t param, size_t box) const;

 private:
  struct Compared;
  // What a box has of the weight, or of the master.
  struct Side {
    const Compared* compared = nullptr;
    uint64_t count_bytes = 0, element_bytes = 0;
    std::atomic<uint64_t> sum = 0;
    std::atomic<uint64_t> summed_bytes = 0;

    uint64_t pair_bytes() const { return element_bytes * kWeightsPerPair; }
    bool has_passed() const { return summed_bytes == count_bytes; }
  };
  struct Compared {
    size_t param = 0;
    Side weight, master;
    bool has_passed() const { return weight.has_passed() && master.has_passed(); }
    bool is_equal() const { return weight.sum == master.sum; }
  };
  // To which a chunk belongs, and where it starts in it.
  struct PartOfSide {
    Side* side = nullptr;
    uint64_t offset_bytes = 0;
  };
  // What has passed of a pair of words that was cut.
  struct Piece {
    std::array<std::byte, sizeof(float) * kWeightsPerPair> bytes;
    uint64_t count_bytes = 0;
  };

  void watch(size_t param);
  void add_side(Side& side, ckpt::DType dtype, const std::vector<RunOfBox>& runs);
  void note_part(Side& side, uint64_t offset_bytes, std::span<const std::byte> bytes);
  // A part that starts at a whole pair of words, and ends at one or at the side's end.
  void add(Side& side, uint64_t offset_bytes, std::span<const std::byte> part) const;
  // A part of one pair.
  void keep(Side& side, uint64_t offset_bytes, std::span<const std::byte> part);

  const FiledState& state_;
  const ckpt::Checkpoint& source_;
  std::deque<Compared> compared_;
  std::vector<std::vector<Compared*>> of_param_;  // empty: not watched
  WatchedStorages<PartOfSide> watched_;
  std::mutex mutex_;
  std::map<std::pair<const Side*, uint64_t>, Piece> pieces_;  // [side, pair]
};

// Whether names of masters were computed, by a deal or the order of a flat buffer, rather than
// stated: their values must prove them.
bool are_names_computed(const FiledState& state);

// Whether any master is compared with its weight.
bool has_compared_masters(const TrainingState& state);

// Error(Corrupt) with file and key: a master that does not round to the weight of its name, or what
// of both is damaged.
[[noreturn]] void refuse_master(const ckpt::Checkpoint& source, const TrainedParam& param);

// prove_assignment() of what has not passed by; `passed` may be null.
std::vector<AmbiguousParam> prove_rest(const FiledState& state, const ckpt::Checkpoint& source,
                                       const ProofOptions& options, const PassingProof* passed);

// For weights that are something else than rounded masters, as kept in fp8 or fp4 and stored
// dequantised: of each parameter at least half of the weights must be as near to their masters as
// such rounding leaves them, which masters of another parameter are not. Reads all of them. Throws
// as refuse_master(); Error(IoFailure, "cancelled") when asked to stop.
void require_near_masters(const TrainingState& state, const ckpt::Checkpoint& source,
                          const std::stop_token& stop);

}  // namespace optim
