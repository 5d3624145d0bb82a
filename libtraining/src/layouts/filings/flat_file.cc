// The state of DistributedOptimizers in distrib_optim.pt of rank folders, which the first of the
// ranks that share a buffer writes (GatheredBuffers), of experts a list of two of these. Their
// parameter groups are in each model_optim_rng.pt. Source: save_parameter_state and
// get_parameter_state_dp_zero of megatron/core/optimizer/distrib_optimizer.py.
#include <map>

#include "grid/flat_buffers.h"
#include "layouts/filings/flat_buckets.h"
#include "layouts/job/filing_hooks.h"
#include "layouts/job/flat_records.h"
#include "layouts/parts/flat_states.h"
#include "layouts/parts/rank_items.h"
#include "layouts/parts/torch_source.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

using ckpt::ArchiveBuilder;

// A chain of optimizers is a list, of which this is one; an optimizer alone stands without a list.
Value state_in_chain(const Value& root, const Place& place, size_t index, size_t count) {
  if (count == 1) {
    if (!root.is(Kind::Dict)) place.corrupt("is not the state of one DistributedOptimizer");
    return root;
  }
  if (!root.is(Kind::List) || root.size() != count) {
    place.corrupt("is not a list of the states of " + std::to_string(count) +
                  " DistributedOptimizers");
  }
  return root[index];
}

class FlatFileReader {
 public:
  explicit FlatFileReader(const RankFilesInto& into)
      : source_(into.source),
        into_(into),
        placement_(into.state, into.state.grid),
        arguments_(flat_arguments(into.args, first_model_file(into.source.checkpoint))),
        buffers_(into.state, placement_, into.groups, arguments_),
        states_(source_.checkpoint, buffers_, into.state),
        gathered_(into.state, states_) {}

  // Throws Corrupt where a file does not hold what its ranks write.
  void run() {
    require_writers();
    const size_t count = into_.state.chain.size();
    const auto tensor_at = [this](const Place& at) -> const auto& { return source_.tensor_at(at); };
    for (const WorldRank& rank : source_.ranks) {
      for (uint32_t i = 0; i < count; ++i) {
        if (!buffers_.writes(i, rank.at)) continue;
        const Place root{rank.flat_file(), ""};
        const Value value = state_in_chain(source_.document(root.file).tree.root(), root, i, count);
        gathered_.read({rank.at, value, count == 1 ? root : root / i, tensor_at},
                       buffers_.of(i, rank.at));
      }
    }
    states_.join();
    read_groups();
  }

 private:
  // Ranks that write to one file overwrite what the others wrote.
  void require_writers() const {
    std::map<std::string, uint32_t> writers;
    for (const WorldRank& rank : source_.ranks) {
      for (uint32_t i = 0; i < into_.state.chain.size(); ++i) {
        if (!buffers_.writes(i, rank.at)) continue;
        const auto [known, is_first] = writers.emplace(rank.flat_file(), rank.rank);
        if (is_first || known->second == rank.rank) continue;
        Place{rank.flat_file(), ""}.corrupt("ranks " + std::to_string(known->second) + " and " +
                                            std::to_string(rank.rank) +
                                            " both write it, so that state was lost");
      }
    }
    for (const ckpt::FileEntry& file : source_.checkpoint.catalog().files) {
      if (!file.path.ends_with(kFlatFileName) || writers.contains(file.path)) continue;
      Place{file.path, ""}.corrupt("unexpected rank file: no rank of this layout writes it",
                                   "it may be left over from a run of another layout");
    }
  }

  // Every rank states those of all optimizers.
  void read_groups() {
    RankGroups merged(into_.common, into_.state);
    RankItems items(equal_items_of(source_.checkpoint));
    for (const WorldRank& rank : source_.ranks) {
      if (!rank.writes_model) continue;
      const Document& document = source_.document(rank.model_file());
      const Place root{rank.model_file(), ""};
      const RankOptimizers stated =
          optimizers_of(member(document.tree.root(), "optimizer", root), root / "optimizer");
      if (stated.states.size() != into_.state.chain.size()) {
        (root / "optimizer")
            .corrupt("holds " + std::to_string(stated.states.size()) + " optimizers, expected " +
                     std::to_string(into_.state.chain.size()));
      }
      for (uint32_t i = 0; i < stated.states.size(); ++i) {
        const Place& place = stated.places[i];
        const Value inner = member(stated.states[i], "optimizer", place);
        require_state_in_buffers(inner, place / "optimizer");
        const Value values = list_member(inner, "param_groups", place / "optimizer");
        merged.add_list(i, into_.groups,
                        {values, document, place / "optimizer" / "param_groups",
                         rank_name(place.file), !buffers_.of(i, rank.at).empty()});
        items.add({rank.rank, i, false, document, stated.states[i], place}, {"optimizer"});
        items.add({rank.rank, i, true, document, inner, place / "optimizer"},
                  {"state", "param_groups"});
      }
    }
    items.settle(into_.common, into_.state);
  }

  const TorchSource& source_;
  const RankFilesInto& into_;
  Placement placement_;
  FlatArguments arguments_;
  FlatBuffers buffers_;
  FlatStates states_;
  GatheredBuffers gathered_;
};

class FlatFileWriter {
 public:
  explicit FlatFileWriter(const TargetJob& job) : job_(job), target_(job) {}

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
    throw Error(ErrorCode::Unsupported, {},
                "Megatron cannot store this grid in format torch: ranks " + std::to_string(other) +
                    " and " + std::to_string(rank.rank) + " both write " + rank.flat_file(),
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
    if (is_known && state.dtype == DType::Float32) return;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = state.name},
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

constexpr RankFileHooks kInRankFiles = {
    .read = [](const RankFilesInto& into) { FlatFileReader(into).run(); },
    .write = [](const TargetJob& job) { return FlatFileWriter(job).run(); },
};

}  // namespace

constexpr Filing kFlatFile = {.name = "flat_file",
                              .container = ckpt::Format::Torch,
                              .by_elements = true,
                              .in_order = true,
                              .in_rank_files = &kInRankFiles};

}  // namespace optim
