#include "step/optimizer/update_params.h"

#include <vector>

#include "step/optimizer/range_items.h"
#include "step/tensors/param_storage.h"

namespace optim {
namespace {

// Parameters that are kept in fewer bits are unpacked for their update: so many elements at a time.
constexpr int64_t kUnpackedElements = int64_t{1} << 24;

UpdateItem item_of(const PendingUpdate& update, double grad_scale) {
  OptimizedParam& param = *update.param;
  UpdateItem item;
  item.target = {&param.model.info, param.main_param, param.grad, &param.state};
  const bool rounds = has_master(param) && !param.remainder.defined();
  if (rounds) item.target.rounded = param.model.param;
  item.target.split = param.split.get();
  item.context = {update.group->lr, update.group->weight_decay, param.step, grad_scale};
  return item;
}

// The first updates of the list that are of one group and, unpacked, not too large.
size_t batch_size(std::span<const PendingUpdate> updates, const StatePrecision& precision) {
  int64_t elements = 0;
  size_t size = 0;
  while (size < updates.size() && updates[size].group == updates.front().group) {
    if (is_packed(*updates[size].param, precision)) {
      elements += updates[size].param->model.param.numel();
      if (size > 0 && elements > kUnpackedElements) break;
    }
    ++size;
  }
  return size;
}

}  // namespace

void update_params(std::span<const PendingUpdate> updates, const StatePrecision& precision,
                   double grad_scale) {
  while (!updates.empty()) {
    const auto batch = updates.first(batch_size(updates, precision));
    const UpdateRule& rule = *batch.front().group->rule;
    RangeItems items;
    for (const PendingUpdate& update : batch) {
      OptimizedParam& param = *update.param;
      unpack_param(param);
      ++param.step;
      if (param.whole_count != 0) rule.init_state(param.main_param, param.state);
      items.add(item_of(update, grad_scale), param);
    }
    rule.update_all(items.items());
    items.write_back();
    for (const PendingUpdate& update : batch) pack_param(*update.param, precision);
    updates = updates.subspan(batch.size());
  }
}

}  // namespace optim
