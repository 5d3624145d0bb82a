#include "step/optimizer/peers_and_device.h"

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "step/rules/chunks.h"
#include "step/tensors/param_storage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <optim/update_rule.h>

namespace optim {
namespace {

// A multiple of what ATen's loops do at a time: two vectors of at most 16 fp32 numbers.
constexpr int64_t kBlock = 64;

int64_t round_down(int64_t count) { return count / kBlock * kBlock; }
int64_t round_up(int64_t count) { return round_down(count + kBlock - 1); }

at::Tensor narrowed(const at::Tensor& tensor, int64_t from, int64_t count) {
  return tensor.defined() ? tensor.narrow(0, from, count) : tensor;
}

// Zeros but for these elements of `range`.
at::Tensor in_block(const at::Tensor& range, int64_t block_count, int64_t at) {
  if (!range.defined()) return range;
  at::Tensor block = at::zeros({block_count}, range.options().requires_grad(false));
  block.narrow(0, at, range.numel()).copy_(range);
  return block;
}

// Updates of ranges of parameters, with the bits of updates of whole ones. ATen rounds differently
// in the remainder behind its vectors, so that each element must lie at the same place among
// vectors as in the whole parameter: what is left of a block of 64 elements at the ends of a range
// is updated in a block of its own, whose other elements are zeros.
class RangeItems {
 public:
  // `item`: of `param`, whose states exist. Throws nothing; tensors are views of the parameter's.
  void add(const UpdateItem& item, const OptimizedParam& param) {
    if (param.whole_count == 0) {
      items_.push_back(item);
      return;
    }
    const int64_t begin = param.first_element, end = begin + item.target.param.numel();
    const int64_t middle = std::min(round_up(begin), end);
    const int64_t last = end == param.whole_count ? end : std::max(round_down(end), middle);
    if (begin < middle) add_edge(item, param, 0, middle - begin);
    if (middle < last) add_middle(item, middle - begin, last - middle);
    if (last < end) add_edge(item, param, last - begin, end - last);
  }

  std::vector<UpdateItem>& items() { return items_; }

  void write_back() {  // once the items are updated
    for (const Edge& edge : edges_) {
      const UpdateTarget& block = items_[edge.item].target;
      const UpdateTarget& whole = edge.of_param.target;
      const auto copy = [&](const at::Tensor& to, const at::Tensor& from) {
        if (to.defined()) {
          to.narrow(0, edge.from, edge.count).copy_(from.narrow(0, edge.at, edge.count));
        }
      };
      copy(whole.param, block.param);
      copy(whole.rounded, block.rounded);
      for (const auto& [name, tensor] : *whole.state) copy(tensor, edge.state.at(name));
    }
  }

 private:
  struct Edge {
    UpdateItem of_param;
    int64_t from = 0, count = 0;  // elements of the parameter's range
    int64_t at = 0;               // in the block
    ParamState state = {};
    size_t item = 0;
  };

  void add_middle(const UpdateItem& item, int64_t from, int64_t count) {
    items_.push_back(mapped(item, middle_states_.emplace_back(), [&](const at::Tensor& tensor) {
      return narrowed(tensor, from, count);
    }));
  }

  void add_edge(const UpdateItem& item, const OptimizedParam& param, int64_t from, int64_t count) {
    const int64_t first = param.first_element + from;
    const int64_t block = std::min(kBlock, param.whole_count - round_down(first));
    const int64_t at = first - round_down(first);
    Edge& edge = edges_.emplace_back(Edge{item, from, count, at, {}, items_.size()});
    items_.push_back(mapped(item, edge.state, [&](const at::Tensor& tensor) {
      return in_block(narrowed(tensor, from, count), block, at);
    }));
  }

  std::vector<UpdateItem> items_;
  std::deque<ParamState> middle_states_;  // stay where they are
  std::deque<Edge> edges_;
};

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

// --- with what travels ---

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
