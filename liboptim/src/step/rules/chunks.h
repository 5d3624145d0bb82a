#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include <optim/update_rule.h>

#include "step/loops/single_thread.h"

namespace optim {

// Elements that one thread updates at a time: they stay in its cache, and ATen's operations on them
// run on that thread alone.
inline constexpr int64_t kChunk = int64_t{1} << 14;

// f(begin, count) for the chunks of `count` elements, in parallel. ATen's vector and remainder code
// round differently, and whole tensors are split by the number of threads; chunks are not.
template <class F>
void for_each_chunk(int64_t count, F&& f) {
  at::parallel_for(0, (count + kChunk - 1) / kChunk, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    const SingleThread single_thread;
    for (int64_t i = first; i < last; ++i) f(i * kChunk, std::min(kChunk, count - i * kChunk));
  });
}

inline at::Tensor chunk_of(const at::Tensor& tensor, int64_t begin, int64_t count) {
  return tensor.defined() ? tensor.view({-1}).narrow(0, begin, count) : tensor;
}

// The item of the tensors that `map` gives for those of `item`; `state` is theirs.
template <class Map>
UpdateItem mapped(const UpdateItem& item, ParamState& state, Map&& map) {
  for (const auto& [name, tensor] : *item.target.state) state[name] = map(tensor);
  UpdateItem made = item;
  made.target.param = map(item.target.param);
  made.target.grad = map(item.target.grad);
  made.target.rounded = map(item.target.rounded);
  made.target.state = &state;
  return made;
}

// update(item) for each chunk of an item whose states exist.
template <class Update>
void update_chunks(const UpdateItem& item, Update&& update) {
  for_each_chunk(item.target.param.numel(), [&](int64_t begin, int64_t count) {
    ParamState state;
    update(mapped(item, state,
                  [&](const at::Tensor& tensor) { return chunk_of(tensor, begin, count); }));
  });
}

}  // namespace optim
