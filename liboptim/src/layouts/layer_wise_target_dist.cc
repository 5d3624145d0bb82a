// Writes what layer_wise_dist.cc reads: each owner's optimizer chunks and a share of the model's in
// __R_0.distcp, the common state in common.pt or, as since August 2026, in the store. Since then a
// DistributedOptimizer owns what Muon does not, which calls a master `param` and keeps its step in
// the groups.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include <ckpt/error.h>

#include "layouts/common_state.h"
#include "layouts/layer_wise_target.h"
#include "layouts/tensor_attributes.h"

namespace optim {
namespace {

using ckpt::ArchiveBuilder;
using ckpt::DistChunk;
using ckpt::NodeId;
using ckpt::Value;
using ckpt::ValueTree;

constexpr const char* kBackendJson =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
    R"("common_backend": "torch", "common_backend_version": 1})";
constexpr const char* kBackendJsonOfAugust =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";
constexpr const char* kShardingType = "fully_reshardable";

class DistWriter {
 public:
  explicit DistWriter(TargetJob& job) : job_(job), source_(job.source) {
    spec_.rank_count = job.data_parallel;
  }

  void run() {
    add_extra_states();
    add_rank_objects();
    std::optional<ckpt::TargetFile> common = write_common_state();
    add_model_chunks();
    add_optimizer_chunks();
    balance_model_chunks();
    auto& files = job_.target.files;
    files = ckpt::make_torch_dist_files(spec_);
    if (common) files.insert(files.end() - 1, std::move(*common));
    files.push_back({"metadata.json", {}, of_august() ? kBackendJsonOfAugust : kBackendJson});
  }

 private:
  bool of_august() const { return job_.spec.layout == StoreLayout::August2026; }

  bool is_distributed(const ChainedOptimizerState& optimizer) const {
    return optim::is_distributed(source_, optimizer, job_.spec.layout);
  }

  // --- tensors ---

  // One chunk per layer, as Megatron stores them; two for the halves of a gated linear unit.
  void add_chunks(const std::string& prefix, const TrainedParam& param, const TensorRef& tensor,
                  uint32_t rank) {
    const std::string& name = param.info.name;
    const ShardedName sharded = sharded_name(name, key_rules(source_));
    const ckpt::Extents& shape = tensor->shape;
    const bool halves = source_.gated_linear_unit && is_gated_half(name) &&
                        shape == param.weight->shape && shape[0] % 2 == 0;
    const uint64_t parts = halves ? 2 : 1;
    for (uint64_t part = 0; part < parts; ++part) {
      ckpt::Box box = ckpt::whole(shape);
      if (halves) {
        box.sizes[0] = shape[0] / 2;
        box.offsets[0] = part * box.sizes[0];
      }
      DistChunk chunk{
          prefix + sharded.key, tensor->dtype, shape, box, {tensor, box}, rank};
      if (sharded.layer) stack(chunk, *sharded.layer);
      spec_.chunks.push_back(std::move(chunk));
    }
  }

  void stack(DistChunk& chunk, uint32_t layer) const {
    chunk.global_shape.insert(chunk.global_shape.begin(), source_.layer_count);
    chunk.box.offsets.insert(chunk.box.offsets.begin(), layer);
    chunk.box.sizes.insert(chunk.box.sizes.begin(), 1);
  }

  void add_model_chunks() {
    for (const TrainedParam& param : source_.params) add_chunks("", param, param.weight, 0);
    model_chunk_count_ = spec_.chunks.size();
  }

  void add_optimizer_chunks() {
    for (uint32_t rank = 0; rank < job_.data_parallel; ++rank) {
      for (const auto& group : job_.deal[rank]) {
        for (const uint32_t index : group) add_param_states(source_.params[index], rank);
      }
    }
  }

  void add_param_states(const TrainedParam& param, uint32_t rank) {
    for (const auto& [state, value] : param.states) {
      add_chunks(state_key(state, ""), param, value, rank);
    }
    const bool distributed = is_distributed(source_.chain[param.optimizer]);
    const std::string_view master = distributed ? kDistributedMaster : kMasterState;
    add_chunks(state_key(master, ""), param, param.master, rank);
  }

  static uint64_t chunk_bytes(const DistChunk& chunk) {
    return ckpt::element_count(chunk.box.sizes) * ckpt::bytes_per_element(chunk.dtype);
  }

  // Every rank holds the whole model: the largest chunks first, each to the rank that has least.
  void balance_model_chunks() {
    std::vector<uint64_t> loads(job_.data_parallel);
    for (size_t i = model_chunk_count_; i < spec_.chunks.size(); ++i) {
      loads[spec_.chunks[i].rank] += chunk_bytes(spec_.chunks[i]);
    }
    std::vector<size_t> order(model_chunk_count_);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return chunk_bytes(spec_.chunks[a]) > chunk_bytes(spec_.chunks[b]);
    });
    for (const size_t i : order) {
      const auto least = std::min_element(loads.begin(), loads.end());
      spec_.chunks[i].rank = static_cast<uint32_t>(least - loads.begin());
      *least += chunk_bytes(spec_.chunks[i]);
    }
  }

  // --- objects ---

  // torch.save is given a list of one object.
  void add_object(std::string key, ArchiveBuilder& archive, NodeId object) {
    const NodeId list = archive.tree().list({object});
    ckpt::TargetArchive made = archive.finish("archive", list);
    spec_.objects.push_back(
        {std::move(key), std::get<1>(std::move(made.content)), std::move(made.records), 0});
  }

  void add_extra_states() {
    for (const ModelEntry& entry : source_.model) {
      if (entry.what != ModelEntry::What::ExtraState) continue;
      if (entry.name == kOutputExtraState) {
        if (entry.object)
          job_.lose(entry.name, "Megatron does not save this object of the output layer");
        continue;
      }
      ArchiveBuilder archive;
      NodeId object = ckpt::kNoNode;
      if (entry.object) {
        const ckpt::Document& document = *source_.extra_states[*entry.object];
        object = archive.carry(document.tree.root(), document);
      } else {
        object = archive.tree().none();
      }
      add_object(extra_state_key(entry.name), archive, object);
    }
  }

  // At the size that they are of, they are carried as they are; else with rerun_state_machine lost.
  void add_rank_objects() {
    if (job_.size_changes() || job_.format_changes()) return;
    for (const auto& [key, document] : source_.rank_objects) {
      ArchiveBuilder archive;
      const NodeId root = archive.carry(document->tree.root(), *document);
      ckpt::TargetArchive made = archive.finish("archive", root);
      spec_.objects.push_back(
          {key, std::get<1>(std::move(made.content)), std::move(made.records), 0});
    }
  }

  std::string extra_state_key(const std::string& name) const {
    const ShardedName sharded = sharded_name(name, key_rules(source_));
    const std::string index = std::to_string(sharded.layer.value_or(0));
    const std::string count = std::to_string(sharded.layer ? source_.layer_count : 1);
    return sharded.key + "/shard_" + index + "_" + count;
  }

  // --- the common state ---

  // common.pt, or an object of the store.
  std::optional<ckpt::TargetFile> write_common_state() {
    ArchiveBuilder archive;
    ValueTree& tree = archive.tree();
    const NodeId root = tree.dict();
    bool written = false;
    const auto add_optimizer = [&] {  // Megatron's order: behind the iteration
      if (!std::exchange(written, true)) tree.put(root, "optimizer", write_optimizers(archive));
    };
    const Value common = source_.common.tree.root();
    for (size_t i = 0; i < common.item_count(); ++i) {
      const auto [key, value] = common.item(i);
      if (key.text() == "rng_state") {
        add_rng_state(value);
      } else if (const auto carried = carry_common_item(job_, key.text(), value, archive)) {
        tree.put(root, key.text(), *carried);
      }
      if (key.text() == "iteration") add_optimizer();
    }
    add_optimizer();
    tree.put(root, "content_metadata", content_metadata(tree));
    if (!of_august()) return ckpt::TargetFile{"common.pt", {archive.finish("common", root)}, {}};
    add_object(std::string(kCommonStateKey), archive, root);
    return std::nullopt;
  }

  NodeId content_metadata(ValueTree& tree) const {
    const NodeId content = tree.dict();
    if (of_august()) {
      tree.put(content, "distrib_optim_sharding_type", tree.str(kShardingType));
      tree.put(content, "distrib_optim_fully_reshardable_mem_efficient", tree.boolean(false));
    }
    tree.put(content, "singleton_local_shards", tree.boolean(false));
    tree.put(content, "chained_optim_avoid_prefix", tree.boolean(true));
    return content;
  }

  void add_rng_state(const Value& value) {
    ArchiveBuilder archive;
    if (const auto carried = carry_common_item(job_, "rng_state", value, archive)) {
      add_object("rng_state/shard_0.0_1.1", archive, *carried);
    }
  }

  // {0: {...}, 1: {...}}, or the state itself if there is one optimizer.
  NodeId write_optimizers(ArchiveBuilder& archive) {
    if (source_.chain.size() == 1) return write_optimizer(archive, source_.chain[0]);
    const NodeId chain = archive.tree().dict();
    for (size_t i = 0; i < source_.chain.size(); ++i) {
      const NodeId key = archive.tree().integer(static_cast<int64_t>(i));
      archive.tree().set_item(chain, key, write_optimizer(archive, source_.chain[i]));
    }
    return chain;
  }

  NodeId write_optimizer(ArchiveBuilder& archive, const ChainedOptimizerState& optimizer) {
    ValueTree& tree = archive.tree();
    const auto carry = [&](NodeId node) {
      return archive.carry(source_.common.tree.value(node), source_.common);
    };
    const bool distributed = is_distributed(optimizer);
    const NodeId inner = tree.dict();
    if (!distributed) write_common_step(archive, optimizer, inner);
    const NodeId groups = tree.list();
    for (const NodeId group : optimizer.groups) {
      const NodeId carried = carry(group);
      if (distributed) put_step(tree, carried, optimizer);
      tree.append(groups, carried);
    }
    tree.put(inner, "param_groups", groups);
    for (const auto& [key, node] : optimizer.inner_others) tree.put(inner, key, carry(node));
    const NodeId result = tree.dict();
    tree.put(result, "optimizer", inner);
    for (const auto& [key, node] : optimizer.others) tree.put(result, key, carry(node));
    if (distributed) tree.put(result, "param_state_sharding_type", tree.str(kShardingType));
    return result;
  }

  static void write_common_step(ArchiveBuilder& archive, const ChainedOptimizerState& optimizer,
                                NodeId inner) {
    ValueTree& tree = archive.tree();
    NodeId step = ckpt::kNoNode;
    switch (optimizer.step_layout) {
      case StepLayout::PerParam:
        step = archive.add_tensor(optimizer.step_dtype, {}, optimizer.step_bytes);
        break;
      case StepLayout::PerParamNumber: step = tree.integer(optimizer.step_number); break;
      default: return;
    }
    const NodeId state = tree.dict();
    tree.put(state, "common_step", step);
    tree.put(inner, "state", state);
  }

  TargetJob& job_;
  const TrainingState& source_;
  ckpt::DistSpec spec_;
  size_t model_chunk_count_ = 0;
};

}  // namespace

bool is_distributed(const TrainingState& source, const ChainedOptimizerState& optimizer,
                    StoreLayout layout) {
  return layout == StoreLayout::August2026 && !optimizer.groups.empty() &&
         source.common.tree.value(optimizer.groups[0]).find("optimizer").has_value();
}

void put_step(ValueTree& tree, NodeId group, const ChainedOptimizerState& optimizer) {
  if (optimizer.step_layout != StepLayout::PerParam) return;
  float step = 0;
  if (optimizer.step_dtype != ckpt::DType::Float32 || optimizer.step_bytes.size() != sizeof step) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "step"},
                      "a step count that is not float32");
  }
  std::memcpy(&step, optimizer.step_bytes.data(), sizeof step);
  tree.put(group, "step", tree.real(static_cast<double>(step)));
}

void add_torch_dist_files(TargetJob& job) {
  check_stackable(job.source);
  for (ckpt::NotCarried& lost : lost_attributes(job.source)) {
    job.target.not_carried.push_back(std::move(lost));
  }
  if (job.source.model_metadata) {
    job.target.not_carried.push_back(
        {"_metadata of the model state dict",
         "module versions: torch_dist does not store them, and Megatron does not need them"});
  }
  DistWriter(job).run();
}

}  // namespace optim
