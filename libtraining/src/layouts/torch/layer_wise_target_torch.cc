// Writes what layer_wise_torch.cc reads: in each rank folder model_optim_rng.pt, which repeats its
// writer's optimizer state, and one layer_wise_optimizer_D.pt per rank.
#include <algorithm>

#include <ckpt/archive_builder.h>

#include "grid/rank_files.h"
#include "grid/sharing_of_params.h"
#include "layouts/job/filing_hooks.h"
#include "layouts/job/layer_wise_target.h"
#include "layouts/job/tensor_attributes.h"
#include "state/state_values.h"
#include "state/words.h"

namespace optim {
namespace {

using ckpt::ArchiveBuilder;

// Writes parts of tensors, as a tensor-parallel rank has them, into an archive. All must outlive
// it.
class RankTensors {
 public:
  RankTensors(const TargetJob& job, const RankCoordinates& at, ckpt::ArchiveBuilder& archive)
      : job_(job), at_(at), archive_(archive) {}

  // Throws Unsupported for one that is not of its parameter's shape, if ranks would share it.
  NodeId plain(uint32_t param, const TensorRef& tensor) const;
  // With the attributes that the source's files state.
  NodeId with_stated_attributes(uint32_t param, const TensorRef& tensor) const;

 private:
  const TargetJob& job_;
  const RankCoordinates& at_;
  ckpt::ArchiveBuilder& archive_;
};

// What a tensor parallel rank has of a tensor: blocks one behind the other, and zeros where these
// reach beyond the source's rows (padding of the vocabulary).
ckpt::RecordSource source_of(const TensorRef& tensor, const std::vector<Box>& boxes) {
  const bool has_padding =
      !tensor->shape.empty() && std::ranges::any_of(boxes, [&](const auto& box) {
        return box.offsets[0] + box.sizes[0] > tensor->shape[0];
      });
  if (boxes.size() == 1 && !has_padding) return ckpt::TensorSource{tensor, boxes[0]};
  std::vector<ckpt::Segment> segments;
  uint64_t offset_bytes = 0;
  for (Box box : boxes) {
    const uint64_t box_bytes =
        ckpt::element_count(box.sizes) * ckpt::bytes_per_element(tensor->dtype);
    const uint64_t stored = tensor->shape[0];
    if (box.offsets[0] < stored) {
      box.sizes[0] = std::min(box.sizes[0], stored - box.offsets[0]);
      const uint64_t count = ckpt::element_count(box.sizes);
      segments.push_back({offset_bytes, {tensor, std::move(box)}, 0, count});
    }
    offset_bytes += box_bytes;
  }
  return segments;
}

[[noreturn]] void refuse_shape(const TensorEntry& tensor) {
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = tensor.key},
              "has a shape of its own, so that tensor-parallel ranks cannot share it", "--tp 1");
}

// A tensor with attributes is one rebuilt with a state dict.
NodeId with_attributes(ValueTree& tree, NodeId tensor, NodeId attributes) {
  const NodeId args =
      tree.tuple({tree.value(tensor).callable().id(), tree.global("torch", "Tensor"),
                  tree.value(tensor).args().id(), attributes});
  return tree.object(ckpt::Construction::Reduce,
                     tree.global("torch._tensor", "_rebuild_from_type_v2"), args);
}

NodeId RankTensors::plain(uint32_t param, const TensorRef& tensor) const {
  const Placement& placement = *job_.placement;
  const bool is_of_shape = tensor->shape == job_.source.params[param].weight->shape;
  if (!is_of_shape) {
    if (placement.tensor_ranks(param) > 1) refuse_shape(*tensor);
    return archive_.add_tensor(tensor->dtype, tensor->shape, tensor_source(tensor));
  }
  const auto boxes = placement.boxes(param, placement.tensor_rank(param, at_));
  return archive_.add_tensor(tensor->dtype, placement.shape_on_rank(param),
                             source_of(tensor, boxes));
}

NodeId RankTensors::with_stated_attributes(uint32_t param, const TensorRef& tensor) const {
  const NodeId written = plain(param, tensor);
  const auto attributes = job_.source.attributes.find(tensor->key);
  if (attributes == job_.source.attributes.end()) return written;
  const Value stated = job_.source.common.tree.value(attributes->second);
  return with_attributes(archive_.tree(), written, archive_.carry(stated, job_.source.common));
}

class OptimizerWriter {
 public:
  OptimizerWriter(const TargetJob& job, const WorldRank& rank, ArchiveBuilder& archive)
      : job_(job),
        source_(job.source),
        rank_(rank),
        archive_(archive),
        tree_(archive.tree()),
        tensors_(job, rank.at, archive),
        owned_(job.deals->owned(rank.at)) {}

  // A list of the chained optimizers' states; the state itself, if there is one.
  NodeId run() {
    if (source_.chain.size() == 1) return write_optimizer(0);
    const NodeId list = tree_.list();
    for (uint32_t i = 0; i < source_.chain.size(); ++i) tree_.append(list, write_optimizer(i));
    return list;
  }

 private:
  NodeId write_optimizer(uint32_t index) {
    const ChainedOptimizerState& optimizer = source_.chain[index];
    const std::vector<uint32_t> groups = job_.groups.of_optimizer(index);
    const bool is_flat = job_.filed.optimizers[index]->in_rank_files != nullptr;  // elsewhere
    const NodeId inner = tree_.dict();
    if (!is_flat) tree_.put(inner, "state", write_states(optimizer, groups));
    tree_.put(inner, "param_groups", is_flat ? write_flat_groups(groups) : write_groups(groups));
    for (const auto& [key, node] : optimizer.inner_others) tree_.put(inner, key, carry(node));
    write_rank_items(inner, index, true);
    const NodeId state = tree_.dict();
    tree_.put(state, "optimizer", inner);
    for (const auto& [key, node] : optimizer.others) tree_.put(state, key, carry(node));
    if (!is_flat) tree_.put(state, "fp32_from_fp16_params", write_masters(groups));
    write_rank_items(state, index, false);
    return state;
  }

  void write_rank_items(NodeId state, uint32_t optimizer, bool is_inner) {
    if (!keeps_rank_items(job_)) return;
    for (const RankItem& item : source_.rank_items) {
      if (item.optimizer != optimizer || item.is_inner != is_inner) continue;
      for (const auto& [rank, node] : item.values) {
        if (rank == rank_.rank) tree_.put(state, item.key, carry(node));
      }
    }
  }

  NodeId carry(NodeId node) {
    return archive_.carry(source_.common.tree.value(node), source_.common);
  }

  uint32_t param_of(const HeldEntry& held) const { return source_.model[held.entry].param; }

  NodeId write_states(const ChainedOptimizerState& optimizer, const std::vector<uint32_t>& groups) {
    const NodeId states = tree_.dict();
    int64_t local_index = 0;
    for (const uint32_t group : groups) {
      for (const HeldEntry& held : owned_[group]) {
        tree_.set_item(states, tree_.integer(local_index++),
                       write_state(optimizer, param_of(held)));
      }
    }
    return states;
  }

  NodeId write_state(const ChainedOptimizerState& optimizer, uint32_t param) {
    const NodeId state = tree_.dict();
    if (optimizer.step_layout == StepLayout::PerParam) {
      tree_.put(state, "step", archive_.add_tensor(optimizer.step_dtype, {}, optimizer.step_bytes));
    }
    if (optimizer.step_layout == StepLayout::PerParamNumber) {
      tree_.put(state, "step", tree_.integer(optimizer.step_number));
    }
    for (const auto& [name, value] : source_.params[param].states) {
      tree_.put(state, name, tensors_.with_stated_attributes(param, value));
    }
    return state;
  }

  NodeId write_groups(const std::vector<uint32_t>& groups) {
    const NodeId list = tree_.list();
    int64_t local_index = 0;
    for (const uint32_t index : groups) {
      const NodeId group = carry_group(source_, job_.groups, index, archive_);
      if (owned_[index].empty()) tree_.erase(group, "step");  // a fused Adam sets it where it steps
      const NodeId params = tree_.list();
      for (size_t i = 0; i < owned_[index].size(); ++i) {
        tree_.append(params, tree_.integer(local_index++));
      }
      tree_.put(group, "params", params);
      tree_.append(list, group);
    }
    return list;
  }

  // Without `params`: ranges of elements have no numbers.
  NodeId write_flat_groups(const std::vector<uint32_t>& groups) {
    const NodeId list = tree_.list();
    for (const uint32_t group : groups) {
      tree_.append(list, carry_group(source_, job_.groups, group, archive_));
    }
    return list;
  }

  NodeId write_masters(const std::vector<uint32_t>& groups) {
    const NodeId list = tree_.list();
    for (const uint32_t group : groups) {
      const NodeId masters = tree_.list();
      for (const HeldEntry& held : owned_[group]) {
        if (!source_.params[param_of(held)].master) continue;  // it is its own
        tree_.append(masters, marked(write_master(param_of(held)), held));
      }
      tree_.append(list, masters);
    }
    return list;
  }

  // Megatron marks the master of a further copy of tied embeddings, which does not count for the
  // gradient norm.
  NodeId marked(NodeId master, const HeldEntry& held) {
    const Value args = tree_.value(master).args();
    const bool has_attributes = args.size() == 4 && args[3].is(Kind::Dict);
    if (!has_attributes || job_.placement->is_first_copy(held, rank_.at.pp)) return master;
    tree_.put(args[3].id(), "shared", tree_.boolean(true));
    return master;
  }

  // A master of torch_dist gets the attributes that Megatron gives its name.
  NodeId write_master(uint32_t param) {
    const TensorRef& master = source_.params[param].master;
    if (source_.filed.container == ckpt::Format::Torch) {
      return tensors_.with_stated_attributes(param, master);
    }
    const NodeId tensor = tensors_.plain(param, master);
    const std::vector<Attribute> known = master_attributes(source_.params[param]);
    if (known.empty()) return tensor;
    const NodeId attributes = tree_.dict();
    for (const auto& [name, value] : known) {
      const bool* const flag = std::get_if<bool>(&value);
      tree_.put(attributes, name,
                flag != nullptr ? tree_.boolean(*flag) : tree_.integer(std::get<int64_t>(value)));
    }
    return with_attributes(tree_, tensor, attributes);
  }

  const TargetJob& job_;
  const FiledState& source_;
  const WorldRank& rank_;
  ArchiveBuilder& archive_;
  ValueTree& tree_;
  RankTensors tensors_;
  OwnedGroups owned_;
};

// What a module holds of all experts of a rank, where ranks get other experts.
bool is_of_other_experts(const TargetJob& job, const ModelEntry& entry) {
  return entry.object && is_state_of_experts(entry.name) &&
         job.grid.sizes.expert_parallel != job.source.grid.sizes.expert_parallel &&
         holds_bytes(*job.source.extra_states[*entry.object]);
}

// Module versions are those of a stage's chunk and its experts.
bool keeps_metadata(const TargetJob& job) {
  return job.grid.pipeline == job.source.grid.pipeline &&
         job.grid.sizes.expert_parallel == job.source.grid.sizes.expert_parallel;
}

// The models of a rank.
class ModelWriter {
 public:
  ModelWriter(const TargetJob& job, const WorldRank& rank, ArchiveBuilder& archive)
      : job_(job),
        source_(job.source),
        rank_(rank),
        archive_(archive),
        tensors_(job, rank.at, archive) {}

  void run(NodeId root) {
    const PipelineSplit& pipeline = job_.grid.pipeline;
    const auto held = job_.placement->held(rank_.at.pp, rank_.at.ep);
    for (uint32_t chunk = 0; chunk < pipeline.chunks_per_stage; ++chunk) {
      archive_.tree().put(root, model_key(pipeline, chunk), write_chunk(held, chunk));
    }
  }

 private:
  NodeId write_chunk(const std::vector<HeldEntry>& held, uint32_t chunk) {
    ValueTree& tree = archive_.tree();
    const NodeId model = ckpt::add_ordered_dict(tree);
    for (const HeldEntry& one : held) {
      if (one.chunk != chunk) continue;
      const std::string name = job_.placement->name_on_rank(one, rank_.at.pp, rank_.at.ep);
      tree.set_item(model, tree.str(name), write_entry(source_.model[one.entry]));
    }
    const auto& metadata = source_.model_metadata;
    const size_t index = chunk_index(job_.grid.pipeline, chunk, rank_.at.pp);
    if (keeps_metadata(job_) && index < metadata.size() && metadata[index]) {
      tree.set_state(model,
                     archive_.carry(source_.common.tree.value(*metadata[index]), source_.common));
    }
    return model;
  }

  NodeId write_entry(const ModelEntry& entry) {
    if (entry.what != ModelEntry::What::ExtraState) {
      return tensors_.with_stated_attributes(entry.param, source_.params[entry.param].weight);
    }
    if (!entry.object || is_of_other_experts(job_, entry)) return archive_.tree().none();
    const Document& document = *source_.extra_states[*entry.object];
    return archive_.carry(document.tree.root(), document);
  }

  const TargetJob& job_;
  const FiledState& source_;
  const WorldRank& rank_;
  ArchiveBuilder& archive_;
  RankTensors tensors_;
};

ckpt::TargetFile model_file(TargetJob& job, const WorldRank& rank) {
  ArchiveBuilder archive;
  ValueTree& tree = archive.tree();
  const NodeId root = tree.dict();
  const Value common = job.source.common.tree.root();
  bool written = false;
  const auto add_model = [&] {  // Megatron's order: behind the iteration
    if (std::exchange(written, true)) return;
    ModelWriter(job, rank, archive).run(root);
    if (!job.source.chain.empty()) {
      tree.put(root, "optimizer", OptimizerWriter(job, rank, archive).run());
    }
  };
  for (const auto& [key, value] : ckpt::items_of(common)) {
    if (key.text() == "rng_state") {
      const NodeId state = rng_state_of(job, rank.at, archive);
      if (state != ckpt::kNoNode) tree.put(root, "rng_state", state);
    } else if (const auto carried = carry_common_item(job, key.text(), value, archive)) {
      if (key.text() == "args") set_rank(tree, *carried, rank.rank);
      tree.put(root, key.text(), *carried);
    }
    if (key.text() == "iteration") add_model();
  }
  add_model();
  return {rank.model_file(), {archive.finish("model_optim_rng", root)}, {}};
}

ckpt::TargetFile optimizer_file(const TargetJob& job, const WorldRank& rank) {
  ArchiveBuilder archive;
  const std::string stem = "layer_wise_optimizer_" + std::to_string(rank.at.dp);
  const NodeId root = OptimizerWriter(job, rank, archive).run();
  return {rank.optimizer_file(), {archive.finish(stem, root)}, {}};
}

// Which Megatron could not store, or nobody can invent.
void check_storable(const TargetJob& job) {
  const bool is_in_files = !job.spec.one_rank;
  const bool is_before_core_019 = job.filed.is_layer_wise || job.spec.form.release == &kCore016 ||
                                  !is_since_core_019(job.source.args());
  const std::string loss =
      loss_in_rank_files(job.ranks, {job.filed.is_layer_wise, is_before_core_019});
  if (is_in_files && !loss.empty()) {
    throw Error(ErrorCode::Unsupported, {},
                "Megatron cannot store this grid in format torch: " + loss,
                "--to torch_dist holds any grid");
  }
  if (!job.source.unknown_order.empty()) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = job.source.unknown_order},
                "it is not known at which place the model registers it, which `torch` needs",
                "--to torch_dist needs no order; it is given by " +
                    row_for(job.source, job.source.unknown_order));
  }
  job.placement->require_known_stages();
  for (const TrainedParam& param : job.source.params) {
    if (param.sharing.is_known || job.grid.sizes.tensor_parallel == 1) continue;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                "it is not known how tensor-parallel ranks share it",
                "--tp 1, or " + row_for(job.source, param.info.name));
  }
}

// Module versions of other stages and experts.
void note_metadata(TargetJob& job) {
  const auto& metadata = job.source.model_metadata;
  if (metadata.empty() || keeps_metadata(job)) return;
  job.target.not_carried.push_back(
      {"_metadata of the model state dict",
       "module versions of the old stages and experts; Megatron does not need them"});
}

bool is_at(const RankCoordinates& at, const GivenRank& given) {
  const auto fits = [](std::optional<uint32_t> wanted, uint32_t has) {
    return wanted.value_or(has) == has;
  };
  return fits(given.tp, at.tp) && fits(given.cp, at.cp) && fits(given.dp, at.dp) &&
         fits(given.pp, at.pp) && fits(given.ep, at.ep) && fits(given.etp, at.etp);
}

void add_one_rank(TargetJob& job, const GivenRank& given) {
  const auto rank =
      std::ranges::find_if(job.ranks, [&](const WorldRank& each) { return is_at(each.at, given); });
  if (rank == job.ranks.end()) {
    throw Error(ErrorCode::InvalidArgument, {},
                "the run has no rank at this place: its grid has " +
                    std::to_string(job.ranks.size()) + " ranks");
  }
  for (const Filing* const filing : filings()) {
    if (!job.filed.has(*filing) || filing->in_rank_files == nullptr) continue;
    for (ckpt::TargetFile& file : filing->in_rank_files->write(job)) {
      if (file.path == rank->flat_file()) job.target.files.push_back(std::move(file));
    }
  }
  job.target.files.push_back(model_file(job, *rank));
}

}  // namespace

void add_torch_files(TargetJob& job) {
  check_storable(job);
  note_metadata(job);
  if (job.spec.one_rank) return add_one_rank(job, *job.spec.one_rank);
  for (const ModelEntry& entry : job.source.model) {
    if (!is_of_other_experts(job, entry)) continue;
    job.lose(entry.name, "it is of all experts of a rank, and ranks get other experts");
  }
  for (const auto& [name, states] : job.source.expert_states) {
    for (size_t i = 0; i < states.size(); ++i) {
      job.lose(name + " of expert " + std::to_string(i),
               "`torch` keeps one object of all experts of a rank");
    }
  }
  if (job.filed.has(kDealt)) {
    for (const WorldRank& rank : job.ranks) job.target.files.push_back(optimizer_file(job, rank));
  }
  for (const Filing* const filing : filings()) {
    if (!job.filed.has(*filing) || filing->in_rank_files == nullptr) continue;
    std::ranges::move(filing->in_rank_files->write(job), std::back_inserter(job.target.files));
  }
  for (const WorldRank& rank : job.ranks) {
    if (rank.writes_model) job.target.files.push_back(model_file(job, rank));
  }
}

}  // namespace optim
