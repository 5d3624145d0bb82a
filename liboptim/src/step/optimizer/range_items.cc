#include "step/optimizer/range_items.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

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

}  // namespace

void RangeItems::add(const UpdateItem& item, const OptimizedParam& param) {
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

void RangeItems::add_middle(const UpdateItem& item, int64_t from, int64_t count) {
  ParamState& state = middle_states_.emplace_back();
  for (const auto& [name, tensor] : *item.target.state) {
    state[name] = narrowed(tensor, from, count);
  }
  UpdateItem middle = item;
  middle.target.param = narrowed(item.target.param, from, count);
  middle.target.grad = narrowed(item.target.grad, from, count);
  middle.target.rounded = narrowed(item.target.rounded, from, count);
  middle.target.state = &state;
  items_.push_back(middle);
}

void RangeItems::add_edge(const UpdateItem& item, const OptimizedParam& param, int64_t from,
                          int64_t count) {
  const int64_t first = param.first_element + from;
  const int64_t block = std::min(kBlock, param.whole_count - round_down(first));
  const int64_t at = first - round_down(first);
  Edge& edge = edges_.emplace_back(Edge{item, from, count, at, {}, items_.size()});
  const auto moved = [&](const at::Tensor& tensor) {
    return in_block(narrowed(tensor, from, count), block, at);
  };
  for (const auto& [name, tensor] : *item.target.state) edge.state[name] = moved(tensor);
  UpdateItem in_it = item;
  in_it.target.param = moved(item.target.param);
  in_it.target.grad = moved(item.target.grad);
  in_it.target.rounded = moved(item.target.rounded);
  in_it.target.state = &edge.state;
  items_.push_back(in_it);
}

void RangeItems::write_back() {
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

}  // namespace optim
