// Which parameters optimizer_cpu_offload puts on the CPU.
#include "step/optimizer/offload_choice.h"

#include <optim/rule_table.h>
#include <cstdint>
#include <map>

namespace optim {
namespace {

bool may_move(const OptimizerGroup& group, const OptimizedParam& param, bool cpu_stands_for_gpu) {
  const bool is_there = cpu_stands_for_gpu || param.model.param.is_cuda();
  return is_there && rule_named(group.rule_config.name()).by_element;
}

struct Share {
  int64_t elements = 0;   // that may move
  int64_t offloaded = 0;  // chosen so far
};

}  // namespace

void choose_offloaded(const std::vector<OptimizerGroup*>& groups, const OptimizerConfig& config,
                      bool cpu_stands_for_gpu) {
  std::map<uint32_t, Share> shares;  // by place in the chain
  for (OptimizerGroup* const group : groups) {
    Share& share = shares[group->settings.optimizer_index];
    for (OptimizedParam& param : group->params) {
      param.is_offloaded = false;
      if (!may_move(*group, param, cpu_stands_for_gpu)) continue;
      share.elements += param.model.param.numel();
    }
  }
  if (!config.optimizer_cpu_offload) return;
  for (OptimizerGroup* const group : groups) {
    Share& share = shares[group->settings.optimizer_index];
    const double threshold =
        static_cast<double>(share.elements) * config.optimizer_offload_fraction;
    for (OptimizedParam& param : group->params) {
      if (!may_move(*group, param, cpu_stands_for_gpu)) continue;
      if (static_cast<double>(share.offloaded) >= threshold) continue;
      param.is_offloaded = true;
      share.offloaded += param.model.param.numel();
    }
  }
}

}  // namespace optim
