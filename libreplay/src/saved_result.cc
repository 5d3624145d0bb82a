#include <ATen/ops/empty.h>

#include <optim/checkpoint_bridge.h>
#include <training/layer_wise_update.h>
#include <span>

#include "outcome.h"

namespace optim {
namespace {

// Every tensor of the result on process 0, by canonical key.
using GatheredTensors = std::map<std::string, at::Tensor>;

// A tensor of the optimizer's, or of the whole that it is a piece of.
void keep(const Cuts& cuts, const StateItem& item, const at::Tensor& tensor,
          GatheredTensors& gathered) {
  const std::string& name = cuts.whole_name(item.name);
  const std::vector<int64_t> shape = cuts.whole_shape(item.name, tensor.sizes());
  at::Tensor& kept = gathered[canonical_key(item.kind, name)];
  if (!cuts.is_piece(item.name)) {
    kept = tensor;
    return;
  }
  if (!kept.defined()) kept = at::empty(shape, tensor.scalar_type());
  cuts.put(tensor, item.name, kept);
}

GatheredTensors gather_state(const Cuts& cuts, LayerWiseDistributedOptimizer& optimizer,
                             Collectives& collectives) {
  GatheredTensors gathered;
  const StateTensors tensors(optimizer);
  const auto processes = static_cast<uint32_t>(collectives.size());
  for (const StateItem& item : state_items(optimizer)) {
    if (item.kind == "step") continue;
    const at::Tensor model = optimizer.all_params()[item.id].param.cpu();
    at::Tensor tensor = item.kind == "model" ? model
                        : tensors.owns(item) ? tensors.tensor(item)
                                             : at::empty(model.sizes(), at::kFloat);
    if (item.kind != "model") {
      const uint32_t owner = optimizer.ownership().owner[item.id] % processes;
      collectives.broadcast(tensor, static_cast<int>(owner));
    }
    if (collectives.rank() == 0) keep(cuts, item, tensor, gathered);
  }
  return gathered;
}

std::vector<LayerWiseUpdate::Optimizer> updated_optimizers(const ReplaySource& source,
                                                           const ReplayResult& result,
                                                           int64_t steps, bool from_init) {
  const FiledState& state = source.state;
  const std::vector<OptimizerGroup*> groups = result.optimizer.param_groups();
  std::vector<LayerWiseUpdate::Optimizer> updated(state.chain.size());
  for (const TrainedParam& param : state.params) {
    const int64_t before = from_init ? 0 : saved_step(state, param);
    updated[param.optimizer].step = before + steps;
  }
  for (const OptimizerGroup* const group : groups) {
    updated[group->settings.optimizer_index].groups.push_back(
        {{"lr", group->lr}, {"weight_decay", group->weight_decay}});
  }
  return updated;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Tells its listener that an output is being written, from its making to its end.
class WritingNotice {
 public:
  explicit WritingNotice(const std::function<void(bool)>& listener) : listener_(listener) {
    if (listener_) listener_(true);
  }
  ~WritingNotice() {
    if (listener_) listener_(false);
  }
  WritingNotice(const WritingNotice&) = delete;
  WritingNotice& operator=(const WritingNotice&) = delete;

 private:
  const std::function<void(bool)>& listener_;
};

ConvertReport write(const ReplaySource& source, const ReplayResult& result,
                    const ReplayOptions& options, GatheredTensors tensors) {
  LayerWiseUpdate update;
  update.iteration = result.iteration;
  update.scheduler_num_steps = result.scheduler.num_steps();
  update.optimizers =
      updated_optimizers(source, result, options.steps.value_or(0), options.from_init);
  for (const TensorRef& entry : tensors_of(source.state)) {
    at::Tensor& tensor = tensors[entry->key];
    if (!tensor.defined()) tensor = load_tensor(source.checkpoint, *entry);  // a model's buffer
    update.tensors[entry->key] = bytes_of(tensor);
  }
  ConvertOptions convert;
  convert.base.force = options.force;
  convert.base.strict = options.strict;
  convert.base.verify = options.verify;
  convert.base.execute = options.execute;
  convert.sizes.data_parallel = options.data_parallel;
  convert.ownership = options.ownership;
  const WritingNotice notice(options.on_writing);
  return save_layer_wise(source.state, source.checkpoint, update, options.output, convert);
}

}  // namespace

std::vector<ckpt::NotCarried> save_result(const ReplaySource& source, const ReplayResult& result,
                                          const ReplayOptions& options, Collectives& collectives) {
  GatheredTensors tensors = gather_state(source.cuts, result.optimizer, collectives);
  std::vector<ckpt::NotCarried> not_carried;
  if (collectives.rank() == 0) {
    try {
      not_carried = write(source, result, options, std::move(tensors)).not_carried;
    } catch (const ckpt::Error& error) {
      collectives.all_gather(std::string(error.what()));  // the others wait for the outcome below
      throw;
    }
  }
  const std::string failure = collectives.all_gather(std::string()).front();
  if (!failure.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "process 0 cannot write: " + failure);
  }
  return not_carried;
}

}  // namespace optim
