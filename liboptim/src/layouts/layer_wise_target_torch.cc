// Writes what layer_wise_torch.cc reads: mp_rank_00/model_optim_rng.pt, which repeats rank 0's
// optimizer state, and one layer_wise_optimizer_R.pt per rank.
#include "layouts/layer_wise_target.h"
#include "layouts/rank_files.h"
#include "layouts/tensor_attributes.h"

namespace optim {
namespace {

using ckpt::ArchiveBuilder;
using ckpt::NodeId;
using ckpt::Value;
using ckpt::ValueTree;

// A tensor with attributes is one rebuilt with a state dict.
NodeId with_attributes(ValueTree& tree, NodeId tensor, NodeId attributes) {
  const NodeId args =
      tree.tuple({tree.value(tensor).callable().id(), tree.global("torch", "Tensor"),
                  tree.value(tensor).args().id(), attributes});
  return tree.object(ckpt::Construction::Reduce,
                     tree.global("torch._tensor", "_rebuild_from_type_v2"), args);
}

// With the attributes that the source's files state.
NodeId write_tensor_of(const TrainingState& source, const TensorRef& written,
                       ArchiveBuilder& archive) {
  const NodeId tensor = archive.add_tensor(written->dtype, written->shape, tensor_source(written));
  const auto attributes = source.attributes.find(written->key);
  if (attributes == source.attributes.end()) return tensor;
  const Value stated = source.common.tree.value(attributes->second);
  return with_attributes(archive.tree(), tensor, archive.carry(stated, source.common));
}

class OptimizerWriter {
 public:
  OptimizerWriter(const TargetJob& job, ArchiveBuilder& archive)
      : job_(job), source_(job.source), archive_(archive), tree_(archive.tree()) {}

  // A list of the chained optimizers' states; the state itself, if there is one.
  NodeId run(uint32_t rank) {
    if (source_.chain.size() == 1) return write_optimizer(rank, 0);
    const NodeId list = tree_.list();
    for (uint32_t i = 0; i < source_.chain.size(); ++i) {
      tree_.append(list, write_optimizer(rank, i));
    }
    return list;
  }

 private:
  NodeId write_optimizer(uint32_t rank, uint32_t index) {
    const ChainedOptimizerState& optimizer = source_.chain[index];
    const auto groups = groups_of_optimizer(job_, rank, index);
    const NodeId inner = tree_.dict();
    tree_.put(inner, "state", write_states(optimizer, groups));
    tree_.put(inner, "param_groups", write_groups(optimizer, groups));
    for (const auto& [key, node] : optimizer.inner_others) tree_.put(inner, key, carry(node));
    write_rank_items(inner, {rank, index, true});
    const NodeId state = tree_.dict();
    tree_.put(state, "optimizer", inner);
    for (const auto& [key, node] : optimizer.others) tree_.put(state, key, carry(node));
    tree_.put(state, "fp32_from_fp16_params", write_masters(groups));
    write_rank_items(state, {rank, index, false});
    return state;
  }

  struct RankState {
    uint32_t rank, optimizer;
    bool is_inner;
  };

  void write_rank_items(NodeId state, const RankState& of) {
    if (!keeps_rank_items(job_)) return;
    for (const RankItem& item : source_.rank_items) {
      if (item.optimizer != of.optimizer || item.is_inner != of.is_inner) continue;
      for (const auto& [rank, node] : item.values) {
        if (rank == of.rank) tree_.put(state, item.key, carry(node));
      }
    }
  }

  NodeId carry(NodeId node) {
    return archive_.carry(source_.common.tree.value(node), source_.common);
  }

  NodeId write_states(const ChainedOptimizerState& optimizer,
                      const std::vector<std::vector<uint32_t>>& groups) {
    const NodeId states = tree_.dict();
    int64_t local_index = 0;
    for (const auto& group : groups) {
      for (const uint32_t param : group) {
        tree_.set_item(states, tree_.integer(local_index++),
                       write_state(optimizer, source_.params[param]));
      }
    }
    return states;
  }

  NodeId write_state(const ChainedOptimizerState& optimizer, const TrainedParam& param) {
    const NodeId state = tree_.dict();
    if (optimizer.step_layout == StepLayout::PerParam) {
      tree_.put(state, "step", archive_.add_tensor(optimizer.step_dtype, {}, optimizer.step_bytes));
    }
    if (optimizer.step_layout == StepLayout::PerParamNumber) {
      tree_.put(state, "step", tree_.integer(optimizer.step_number));
    }
    for (const auto& [name, value] : param.states) tree_.put(state, name, write_tensor(value));
    return state;
  }

  NodeId write_tensor(const TensorRef& tensor) {
    return write_tensor_of(source_, tensor, archive_);
  }

  NodeId write_groups(const ChainedOptimizerState& optimizer,
                      const std::vector<std::vector<uint32_t>>& groups) {
    const NodeId list = tree_.list();
    int64_t local_index = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      const NodeId group = carry(optimizer.groups[g]);
      if (groups[g].empty()) tree_.erase(group, "step");  // a fused Adam sets it where it steps
      const NodeId params = tree_.list();
      for (size_t i = 0; i < groups[g].size(); ++i) {
        tree_.append(params, tree_.integer(local_index++));
      }
      tree_.put(group, "params", params);
      tree_.append(list, group);
    }
    return list;
  }

  NodeId write_masters(const std::vector<std::vector<uint32_t>>& groups) {
    const NodeId list = tree_.list();
    for (const auto& group : groups) {
      const NodeId masters = tree_.list();
      for (const uint32_t param : group) {
        tree_.append(masters, write_master(source_.params[param]));
      }
      tree_.append(list, masters);
    }
    return list;
  }

  // A master of torch_dist gets the attributes that Megatron gives its name.
  NodeId write_master(const TrainedParam& param) {
    const NodeId tensor = write_tensor(param.master);
    if (source_.format == ckpt::Format::Torch) return tensor;
    const std::vector<Attribute> known = master_attributes(source_, param);
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
  const TrainingState& source_;
  ArchiveBuilder& archive_;
  ValueTree& tree_;
};

NodeId write_model(const TrainingState& source, ArchiveBuilder& archive) {
  ValueTree& tree = archive.tree();
  const NodeId model = ckpt::add_ordered_dict(tree);
  for (const ModelEntry& entry : source.model) {
    NodeId value = ckpt::kNoNode;
    if (entry.what == ModelEntry::What::Param) {
      value = write_tensor_of(source, source.params[entry.param].weight, archive);
    } else if (entry.object) {
      const ckpt::Document& document = *source.extra_states[*entry.object];
      value = archive.carry(document.tree.root(), document);
    } else {
      value = tree.none();
    }
    tree.set_item(model, tree.str(entry.name), value);
  }
  if (source.model_metadata) {
    tree.set_state(model,
                   archive.carry(source.common.tree.value(*source.model_metadata), source.common));
  }
  return model;
}

ckpt::TargetFile model_file(TargetJob& job) {
  ArchiveBuilder archive;
  ValueTree& tree = archive.tree();
  const NodeId root = tree.dict();
  const Value common = job.source.common.tree.root();
  bool written = false;
  const auto add_model = [&] {  // Megatron's order: behind the iteration
    if (std::exchange(written, true)) return;
    tree.put(root, "model", write_model(job.source, archive));
    tree.put(root, "optimizer", OptimizerWriter(job, archive).run(0));
  };
  for (size_t i = 0; i < common.item_count(); ++i) {
    const auto [key, value] = common.item(i);
    if (const auto carried = carry_common_item(job, key.text(), value, archive)) {
      tree.put(root, key.text(), *carried);
    }
    if (key.text() == "iteration") add_model();
  }
  add_model();
  return {std::string(kModelFile), {archive.finish("model_optim_rng", root)}, {}};
}

ckpt::TargetFile optimizer_file(const TargetJob& job, uint32_t rank) {
  ArchiveBuilder archive;
  const std::string stem = "layer_wise_optimizer_" + std::to_string(rank);
  const NodeId root = OptimizerWriter(job, archive).run(rank);
  return {rank_file(rank), {archive.finish(stem, root)}, {}};
}

}  // namespace

void add_torch_files(TargetJob& job) {
  for (uint32_t rank = 0; rank < job.data_parallel; ++rank) {
    job.target.files.push_back(optimizer_file(job, rank));
  }
  job.target.files.push_back(model_file(job));
}

}  // namespace optim
