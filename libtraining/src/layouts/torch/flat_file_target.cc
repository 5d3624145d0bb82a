// Writes what flat_files.cc reads. Source: save_parameter_state and get_parameter_state_dp_zero of
// megatron/core/optimizer/distrib_optimizer.py.
#include "layouts/torch/flat_file_target.h"

#include <map>

#include <ckpt/error.h>

#include "layouts/job/flat_records.h"

namespace optim {
namespace {

using ckpt::ArchiveBuilder;
using ckpt::NodeId;
using ckpt::ValueTree;

class Writer {
 public:
  explicit Writer(const TargetJob& job) : job_(job), target_(job) {}

  std::vector<ckpt::TargetFile> run() {
    std::map<std::string, uint32_t> writers;
    std::vector<ckpt::TargetFile> files;
    for (const WorldRank& rank : job_.ranks) {
      if (!writes_any(rank)) continue;
      const auto [known, is_first] = writers.emplace(rank.flat_file(), rank.rank);
      if (!is_first) refuse_overwriting(known->second, rank);
      files.push_back(file_of(rank));
    }
    return files;
  }

 private:
  size_t count() const { return job_.source.chain.size(); }

  // The first of the ranks that share an optimizer's buffers.
  bool writes(const WorldRank& rank, uint32_t optimizer) const {
    return target_.buffers().writes(optimizer, rank.at);
  }

  bool writes_any(const WorldRank& rank) const {
    for (uint32_t i = 0; i < count(); ++i) {
      if (writes(rank, i)) return true;
    }
    return false;
  }

  [[noreturn]] static void refuse_overwriting(uint32_t other, const WorldRank& rank) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {},
                      "Megatron cannot store this grid in format torch: ranks " +
                          std::to_string(other) + " and " + std::to_string(rank.rank) +
                          " both write " + rank.flat_file(),
                      "--to torch_dist holds any grid");
  }

  // A list of the chained optimizers' states, None where another rank writes it; the state itself,
  // if there is one.
  ckpt::TargetFile file_of(const WorldRank& rank) const {
    ArchiveBuilder archive;
    NodeId root = ckpt::kNoNode;
    if (count() == 1) {
      root = state_of_optimizer(archive, rank, 0);
    } else {
      root = archive.tree().list();
      for (uint32_t i = 0; i < count(); ++i) {
        archive.tree().append(
            root, writes(rank, i) ? state_of_optimizer(archive, rank, i) : archive.tree().none());
      }
    }
    return {rank.flat_file(), {archive.finish("distrib_optim", root)}, {}};
  }

  NodeId state_of_optimizer(ArchiveBuilder& archive, const WorldRank& rank,
                            uint32_t optimizer) const {
    ValueTree& tree = archive.tree();
    const NodeId state = tree.dict();
    tree.put(state, "buckets_coalesced", tree.boolean(true));
    int64_t number = 0;
    for (const FlatBuffer& buffer : target_.buffers().of(optimizer, rank.at)) {
      const NodeId of_types = tree.dict();
      tree.set_item(of_types, target_.add_types(tree, buffer),
                    state_of_buffer(archive, rank, buffer));
      tree.set_item(state, tree.integer(number++), of_types);
    }
    return state;
  }

  // Each state as one tensor: the unpadded contents of the buckets, one behind the other.
  NodeId state_of_buffer(ArchiveBuilder& archive, const WorldRank& rank,
                         const FlatBuffer& buffer) const {
    ValueTree& tree = archive.tree();
    const NodeId state = tree.dict();
    const uint64_t elements = buffer.layout.unpadded_count();
    for (const FlatState& one : states_in(job_.source, buffer)) {
      require_gathered(one);
      tree.put(state, one.name,
               archive.add_tensor(one.dtype, {elements}, segments_of_buffer(rank, buffer, one)));
    }
    tree.put(state, "numel_unpadded", tree.integer(static_cast<int64_t>(elements)));
    return state;
  }

  // Megatron gathers these three as float32, and reads no other.
  static void require_gathered(const FlatState& state) {
    const bool is_known =
        state.name == "param" || state.name == "exp_avg" || state.name == "exp_avg_sq";
    if (is_known && state.dtype == ckpt::DType::Float32) return;
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = state.name},
                      "is " + std::string(ckpt::name(state.dtype)) +
                          "; distrib_optim.pt holds param, exp_avg and exp_avg_sq as float32, and "
                          "no other state",
                      "--to torch_dist --optimizer-sharding dp_reshardable holds any");
  }

  std::vector<ckpt::Segment> segments_of_buffer(const WorldRank& rank, const FlatBuffer& buffer,
                                                const FlatState& state) const {
    std::vector<ckpt::Segment> all;
    for (size_t i = buffer.held.size(); i-- > 0;) {  // the last registered comes first
      const uint32_t param = job_.source.model[buffer.held[i].entry].param;
      const FlatPlace& place = buffer.layout.places[i];
      const uint64_t begin_bytes =
          buffer.layout.compact_begin(i) * ckpt::bytes_per_element(state.dtype);
      auto segments = segments_of(boxes_on_rank(job_, param, rank.at),
                                  state_of(job_.source.params[param], state.name),
                                  {0, place.range.end - place.range.begin}, begin_bytes);
      std::ranges::move(segments, std::back_inserter(all));
    }
    return all;
  }

  const TargetJob& job_;
  TargetBuffers target_;
};

}  // namespace

std::vector<ckpt::TargetFile> make_flat_files(const TargetJob& job) { return Writer(job).run(); }

}  // namespace optim
