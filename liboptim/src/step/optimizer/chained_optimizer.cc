#include <optim/mixed_precision.h>

#include <ckpt/error.h>
#include <string>
#include <utility>

#include "step/optimizer/peers_and_device.h"

namespace optim {
namespace {

// The entries of a chain's state dict: a list, or a dict by place in the chain.
std::vector<const StateValue*> entries(const StateValue& state_dict) {
  std::vector<const StateValue*> found;
  if (const auto* list = state_dict.get_if<StateList>()) {
    for (const StateValue& entry : *list) found.push_back(&entry);
  } else if (const auto* dict = state_dict.get_if<StateDict>()) {
    for (size_t i = 0; i < dict->size(); ++i) {
      const StateValue* const entry = find(*dict, static_cast<int64_t>(i));
      if (entry != nullptr) found.push_back(entry);
    }
  }
  return found;
}

}  // namespace

ChainedOptimizer::ChainedOptimizer(std::vector<std::unique_ptr<Optimizer>> optimizers,
                                   OptimizerConfig config)
    : Optimizer(std::move(config)), chained_optimizers_(std::move(optimizers)) {}

ChainedOptimizer::~ChainedOptimizer() = default;

std::vector<OptimizerGroup*> ChainedOptimizer::param_groups() {
  std::vector<OptimizerGroup*> all;
  for (const auto& optimizer : chained_optimizers_) {
    for (OptimizerGroup* const group : optimizer->param_groups()) all.push_back(group);
  }
  return all;
}

bool ChainedOptimizer::collect_grads() {
  bool found_inf = false;
  for (const auto& optimizer : chained_optimizers_) found_inf |= optimizer->collect_grads();
  return found_inf;
}

// All with the same outcome, so that their scales never part.
void ChainedOptimizer::update_loss_scale(bool found_inf) {
  for (const auto& optimizer : chained_optimizers_) optimizer->update_loss_scale(found_inf);
}

void ChainedOptimizer::set_grad_scale(double scale) {
  Optimizer::set_grad_scale(scale);
  for (const auto& optimizer : chained_optimizers_) optimizer->set_grad_scale(scale);
}

double ChainedOptimizer::get_loss_scale() const {
  return chained_optimizers_.empty() ? 1.0 : chained_optimizers_.front()->get_loss_scale();
}

bool ChainedOptimizer::step_with_ready_grads() {
  bool success = true;
  for (const auto& optimizer : chained_optimizers_) success &= optimizer->step_with_ready_grads();
  return success;
}

void ChainedOptimizer::reload_model_params() {
  for (const auto& optimizer : chained_optimizers_) optimizer->reload_model_params();
}

StateValue ChainedOptimizer::state_dict() {
  StepInside::of(*this).settle_counts();
  if (chained_optimizers_.size() == 1) return chained_optimizers_[0]->state_dict();
  StateList all;
  for (const auto& optimizer : chained_optimizers_) all.push_back(optimizer->state_dict());
  return all;
}

std::function<void()> ChainedOptimizer::prepare_load(const StateValue& state_dict) {
  StepInside::of(*this).refuse_while_queued();
  StepInside::of(*this).settle_counts();
  if (chained_optimizers_.size() == 1) return chained_optimizers_[0]->prepare_load(state_dict);
  const std::vector<const StateValue*> found = entries(state_dict);
  if (found.size() != chained_optimizers_.size()) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      "expected the state of " + std::to_string(chained_optimizers_.size()) +
                          " optimizers, found " + std::to_string(found.size()));
  }
  std::vector<std::function<void()>> loads;
  for (size_t i = 0; i < found.size(); ++i) {
    loads.push_back(chained_optimizers_[i]->prepare_load(*found[i]));
  }
  return [loads = std::move(loads)] {
    for (const auto& load : loads) load();
  };
}

StateValue ChainedOptimizer::sharded_state_dict(const StateDict& model_sharded_state_dict,
                                                bool is_loading) {
  StepInside::of(*this).settle_counts();
  if (chained_optimizers_.size() == 1) {
    return chained_optimizers_[0]->sharded_state_dict(model_sharded_state_dict, is_loading);
  }
  StateDict all;
  for (size_t i = 0; i < chained_optimizers_.size(); ++i) {
    put(all, static_cast<int64_t>(i),
        chained_optimizers_[i]->sharded_state_dict(model_sharded_state_dict, is_loading));
  }
  return all;
}

}  // namespace optim
