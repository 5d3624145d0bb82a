// Writes what layer_wise_torch.cc reads: mp_rank_00/model_optim_rng.pt, which repeats rank 0's
// optimizer state, and one layer_wise_optimizer_R.pt per rank.
#include "layout/layer_wise_target.h"

namespace optim {
namespace {

using ckpt::ArchiveBuilder;
using ckpt::NodeId;
using ckpt::Value;
using ckpt::ValueTree;

class OptimizerWriter {
 public:
  OptimizerWriter(const TargetJob& job, ArchiveBuilder& archive)
      : job_(job), source_(job.source), archive_(archive), tree_(archive.tree()) {}

  // A list of the chained optimizers' states; the state itself, if there is one.
  NodeId run(uint32_t rank) {
    if (source_.optimizers.size() == 1) return write_optimizer(rank, 0);
    const NodeId list = tree_.list();
    for (uint32_t i = 0; i < source_.optimizers.size(); ++i) {
      tree_.append(list, write_optimizer(rank, i));
    }
    return list;
  }

 private:
  NodeId write_optimizer(uint32_t rank, uint32_t index) {
    const LayerWiseOptimizer& optimizer = source_.optimizers[index];
    const auto groups = groups_of_optimizer(job_, rank, index);
    const NodeId inner = tree_.dict();
    tree_.put(inner, "state", write_states(optimizer, groups));
    tree_.put(inner, "param_groups", write_groups(optimizer, groups));
    const NodeId state = tree_.dict();
    tree_.put(state, "optimizer", inner);
    for (const auto& [key, node] : optimizer.others) tree_.put(state, key, carry(node));
    tree_.put(state, "fp32_from_fp16_params", write_masters(groups));
    return state;
  }

  NodeId carry(NodeId node) {
    return archive_.carry(source_.common.tree.value(node), source_.common);
  }

  NodeId write_states(const LayerWiseOptimizer& optimizer,
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

  NodeId write_state(const LayerWiseOptimizer& optimizer, const LayerWiseParam& param) {
    const NodeId state = tree_.dict();
    if (optimizer.step_layout == StepLayout::PerParam) {
      tree_.put(state, "step", archive_.add_tensor(optimizer.step_dtype, {}, optimizer.step_bytes));
    }
    for (const std::string& name : param.states) {
      tree_.put(state, name, write_tensor(state_key(name, param.info.name)));
    }
    return state;
  }

  NodeId write_tensor(const std::string& key) {
    const ckpt::TensorSource source = tensor_source(source_, key);
    return archive_.add_tensor(source.tensor->dtype, source.tensor->shape, source);
  }

  NodeId write_groups(const LayerWiseOptimizer& optimizer,
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

  // A master with the attributes of tensor parallelism is a tensor rebuilt with a state dict.
  NodeId write_master(const LayerWiseParam& param) {
    const NodeId tensor = write_tensor(state_key(kMasterState, param.info.name));
    const auto attributes = write_attributes(param);
    if (!attributes) return tensor;
    const NodeId args =
        tree_.tuple({tree_.value(tensor).callable().id(), tree_.global("torch", "Tensor"),
                     tree_.value(tensor).args().id(), *attributes});
    return tree_.object(ckpt::Construction::Reduce,
                        tree_.global("torch._tensor", "_rebuild_from_type_v2"), args);
  }

  std::optional<NodeId> write_attributes(const LayerWiseParam& param) {
    if (source_.format == ckpt::Format::Torch) {
      return param.attributes ? std::optional(carry(*param.attributes)) : std::nullopt;
    }
    const ParamAttributes& known = param.info.attributes;
    if (!known.tensor_model_parallel) return std::nullopt;
    const bool gated = source_.gated_linear_unit && is_gated_half(param.info.name);
    const NodeId attributes = tree_.dict();
    if (known.is_qkv) tree_.put(attributes, "is_qkv", tree_.boolean(true));
    tree_.put(attributes, "tensor_model_parallel", tree_.boolean(true));
    tree_.put(attributes, "partition_dim", tree_.integer(known.partition_dim));
    tree_.put(attributes, "partition_stride", tree_.integer(gated ? 2 : 1));
    return attributes;
  }

  const TargetJob& job_;
  const LayerWiseCheckpoint& source_;
  ArchiveBuilder& archive_;
  ValueTree& tree_;
};

NodeId write_model(const LayerWiseCheckpoint& source, ArchiveBuilder& archive) {
  ValueTree& tree = archive.tree();
  const NodeId model = ckpt::add_ordered_dict(tree);
  for (const ModelEntry& entry : source.model) {
    NodeId value = ckpt::kNoNode;
    if (entry.what == ModelEntry::What::Param) {
      const ckpt::TensorSource tensor = tensor_source(source, entry.name);
      value = archive.add_tensor(tensor.tensor->dtype, tensor.tensor->shape, tensor);
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
  return {"mp_rank_00/model_optim_rng.pt", {archive.finish("model_optim_rng", root)}, {}};
}

ckpt::TargetFile rank_file(const TargetJob& job, uint32_t rank) {
  ArchiveBuilder archive;
  const std::string stem = "layer_wise_optimizer_" + std::to_string(rank);
  const NodeId root = OptimizerWriter(job, archive).run(rank);
  return {"mp_rank_00/" + stem + ".pt", {archive.finish(stem, root)}, {}};
}

}  // namespace

void add_torch_files(TargetJob& job) {
  for (uint32_t rank = 0; rank < job.data_parallel; ++rank) {
    job.target.files.push_back(rank_file(job, rank));
  }
  job.target.files.push_back(model_file(job));
}

}  // namespace optim
