#include "step/optimizer/update_and_gather.h"

#include <ATen/core/grad_mode.h>

#include <map>
#include <vector>

#include "step/optimizer/update_params.h"

namespace optim {
namespace {

// Parameters of this process that wait for their update, by id.
using Pending = std::map<uint32_t, PendingUpdate>;

std::vector<PendingUpdate> take(Pending& pending, const std::vector<uint32_t>& ids) {
  std::vector<PendingUpdate> taken;
  for (const uint32_t id : ids) {
    const auto found = pending.find(id);
    if (found == pending.end()) continue;  // without a gradient it stays as it is
    taken.push_back(found->second);
    pending.erase(found);
  }
  return taken;
}

}  // namespace

void update_and_gather(Optimizer& optimizer, std::span<const std::unique_ptr<ParamGather>> gathers,
                       double grad_scale) {
  const at::NoGradGuard no_grad;
  const StatePrecision precision = state_precision(optimizer.config());
  Pending pending;
  for (OptimizerGroup* const group : optimizer.param_groups()) {
    for (OptimizedParam& param : group->params) {
      if (param.grad.defined()) pending[param.id] = {group, &param};
    }
  }
  for (const auto& gather : gathers) {
    for (int64_t round = 0; round < gather->round_count(); ++round) {
      update_params(take(pending, gather->needed_for(round)), precision, grad_scale);
      gather->start(round);
    }
  }
  std::vector<PendingUpdate> rest;  // what nobody else needs
  for (const auto& [id, update] : pending) rest.push_back(update);
  update_params(rest, precision, grad_scale);
  for (const auto& gather : gathers) gather->finish();
}

}  // namespace optim
