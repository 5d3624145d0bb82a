#include <training/rank_reads.h>

#include <algorithm>
#include <map>
#include <set>

#include <training/size_change.h>

#include "grid/placement.h"
#include "grid/rank_files.h"
#include "grid/target_groups.h"
#include "layouts/filings/flat_buckets.h"
#include "state/words.h"

namespace optim {
namespace {

uint64_t bytes_of(const Extents& shape, DType dtype) {
  return ckpt::element_count(shape) * ckpt::bytes_per_element(dtype);
}

uint64_t file_bytes(const ckpt::Catalog& catalog, std::string_view path) {
  const auto found = std::ranges::find(catalog.files, path, &ckpt::FileEntry::path);
  return found == catalog.files.end() ? 0 : found->count_bytes;
}

// Of rank files: the model's, and what the rank has of the optimizer. A flat file is read by the
// first of the ranks that share its buffers, which hands out the parts.
void add_rank_files(const ckpt::Catalog& catalog, const WorldRank& rank, bool wants_optimizer,
                    RankReads& reads) {
  reads.read_bytes += file_bytes(catalog, rank.model_file());
  if (!wants_optimizer) return;
  reads.read_bytes += file_bytes(catalog, rank.optimizer_file());
  if (rank.at.dp_cp == 0) reads.read_bytes += file_bytes(catalog, rank.flat_file());
}

class StoreReads {
 public:
  StoreReads(const OpenedTraining& checkpoint, const FiledState& state, const LoadRequest& request)
      : state_(state),
        wants_optimizer_(request.wants_optimizer),
        placement_(state, request.grid, target_vocabulary(state, request.grid, {})),
        groups_(target_groups(state, request.grid.sizes)),
        deals_(state, placement_, groups_.groups, {state.filed.is_layer_wise}),
        buckets_(checkpoint.catalog()),
        filed_in_buckets_(buckets_.optimizers()),
        // Of each rank: .metadata and what is not sharded, which Megatron reads three times.
        of_each_rank_(file_bytes(checkpoint.catalog(), ".metadata") +
                      3 * file_bytes(checkpoint.catalog(), "common.pt")) {
    if (wants_optimizer_ && (state.filed.has(kRanges) || state.filed.has(kGathered))) {
      throw Error(ErrorCode::Unsupported, {},
                  "which ranks read what of optimizer state that 0.14 and before wrote is "
                  "not known",
                  "--arg no_load_optim says it of the model alone");
    }
    for (uint32_t i = 0; i < state.params.size(); ++i) {
      if (placement_.is_expert(i)) of_experts_.insert(state.params[i].optimizer);
    }
  }

  void add(const WorldRank& rank, RankReads& reads) const {
    reads.read_bytes += of_each_rank_;
    for (const HeldEntry& held : placement_.held(rank.at.pp, rank.at.ep)) {
      const ModelEntry& entry = state_.model[held.entry];
      if (entry.what != ModelEntry::What::Param) continue;
      const TrainedParam& param = state_.params[entry.param];
      add_part(entry.param, *param.weight, rank, reads);
      // A DistributedOptimizer asks for all states of what its rank holds, and keeps its part.
      const Filing* const filing = filing_of(entry.param);
      const bool is_whole = filing == &kByName || filing == &kWhole;
      if (wants_optimizer_ && is_whole) add_states(entry.param, rank, reads);
    }
    if (!wants_optimizer_) return;
    for (const auto& group : deals_.owned(rank.at)) {
      for (const HeldEntry& held : group) {
        const uint32_t param = state_.model[held.entry].param;
        if (filing_of(param) == &kDealt) add_states(param, rank, reads);
      }
    }
    for (const auto& [optimizer, filing] : filed_in_buckets_) {
      add_buckets(optimizer, rank, reads);
    }
  }

 private:
  // How the state of a parameter's optimizer is filed; null: there is none.
  const Filing* filing_of(uint32_t param) const {
    const auto& optimizers = state_.filed.optimizers;
    return optimizers.empty() ? nullptr : optimizers[state_.params[param].optimizer];
  }

  void add_states(uint32_t index, const WorldRank& rank, RankReads& reads) const {
    const TrainedParam& param = state_.params[index];
    if (param.master) add_part(index, *param.master, rank, reads);
    for (const StateTensor& state : param.states) add_part(index, *state.value, rank, reads);
  }

  void add_part(uint32_t param, const TensorEntry& tensor, const WorldRank& rank,
                RankReads& reads) const {
    const bool has_its_shape = tensor.shape == state_.params[param].weight->shape;
    const std::vector<Box> boxes =
        has_its_shape ? placement_.blocks(param, placement_.tensor_rank(param, rank.at))
                      : std::vector<Box>{ckpt::whole(tensor.shape)};
    for (const Box& box : boxes) add_box(tensor, box, reads);
  }

  static void add_box(const TensorEntry& tensor, const Box& box, RankReads& reads) {
    ++reads.tensor_count;
    reads.tensor_bytes += bytes_of(box.sizes, tensor.dtype);
    for (const Chunk& chunk : tensor.chunks) {
      if (intersect(chunk.box, box)) reads.read_bytes += chunk.region.bytes.count_bytes;
    }
  }

  // Of each bucket of its copy of the model, a rank asks for its own part.
  void add_buckets(uint32_t optimizer, const WorldRank& rank, RankReads& reads) const {
    const bool is_of_experts = of_experts_.contains(optimizer);
    const ParallelSizes& sizes = placement_.grid().sizes;
    const uint64_t index = is_of_experts ? rank.at.edp : rank.at.dp_cp;
    const uint64_t count =
        is_of_experts ? sizes.expt_dp() : sizes.data_parallel * sizes.context_parallel;
    const auto copy = buckets_.copies().find(
        {optimizer, is_of_experts ? rank.at.expert_copy : rank.at.model_copy});
    if (copy == buckets_.copies().end()) return;
    for (const auto& [numbers, bucket] : copy->second.buckets) {
      for (const auto& [name, flat] : bucket.tensors) {
        const TensorEntry& tensor = flat.entry();
        const uint64_t part = (tensor.shape[0] + count - 1) / count;
        const uint64_t begin = std::min(tensor.shape[0], index * part);
        const uint64_t end = std::min(tensor.shape[0], begin + part);
        if (begin < end) add_box(tensor, {{begin}, {end - begin}}, reads);
      }
    }
  }

  const FiledState& state_;
  bool wants_optimizer_;
  Placement placement_;
  TargetGroups groups_;
  RankDeals deals_;
  FlatBuckets buckets_;
  std::map<uint32_t, const Filing*> filed_in_buckets_;  // by optimizer of the chain
  std::set<uint32_t> of_experts_;                       // optimizers of the chain
  uint64_t of_each_rank_;
};

}  // namespace

std::vector<RankReads> reads_of_ranks(const OpenedTraining& checkpoint, const FiledState& state,
                                      const LoadRequest& request) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  std::optional<StoreReads> store;
  if (catalog.format == ckpt::Format::TorchDist) store.emplace(checkpoint, state, request);
  std::vector<RankReads> ranks;
  for (const WorldRank& rank : ranks_of(request.grid)) {
    RankReads& reads = ranks.emplace_back(RankReads{.rank = rank.rank});
    store ? store->add(rank, reads) : add_rank_files(catalog, rank, request.wants_optimizer, reads);
  }
  return ranks;
}

}  // namespace optim
