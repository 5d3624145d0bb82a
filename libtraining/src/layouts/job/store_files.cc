#include "layouts/job/store_files.h"

#include <utility>

#include "state/words.h"

namespace optim {

using ckpt::ArchiveBuilder;

void StoreFiles::add_archive(std::string key, ArchiveBuilder& archive, NodeId root,
                             uint32_t writer) const {
  ckpt::TargetArchive made = archive.finish("archive", root);
  spec.objects.push_back(
      {std::move(key), std::get<1>(std::move(made.content)), std::move(made.records), writer});
}

void StoreFiles::add_object(std::string key, ArchiveBuilder& archive, NodeId object,
                            uint32_t writer) const {
  add_archive(std::move(key), archive, archive.tree().list({object}), writer);
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

NodeId write_wrapped(const TargetJob& job, uint32_t optimizer, ArchiveBuilder& archive) {
  const TrainingState& source = job.source;
  const ChainedOptimizerState& state = source.chain[optimizer];
  ValueTree& tree = archive.tree();
  const NodeId inner = tree.dict(), groups = tree.list();
  if (!job.filed.optimizers[optimizer]->by_elements) write_common_step(archive, state, inner);
  for (const uint32_t group : job.groups.of_optimizer(optimizer)) {
    tree.append(groups, carry_group(source, job.groups, group, archive));
  }
  tree.put(inner, "param_groups", groups);
  for (const auto& [key, node] : state.inner_others) {
    tree.put(inner, key, archive.carry(source.common.tree.value(node), source.common));
  }
  return inner;
}

}  // namespace optim
