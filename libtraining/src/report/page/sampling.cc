#include "report/page/rows.h"

#include <algorithm>
#include <numeric>

namespace optim {
namespace {

constexpr uint64_t kRunElements = 4096;  // of a run at most, where more runs than one fit

// The rows, within one index of all dimensions before, that hold so many elements or fewer.
struct RunShape {
  size_t dim = 0;        // in which a run has several indices
  uint64_t inner = 1;    // elements of one index of it
  uint64_t indices = 1;  // of a run
};

RunShape run_shape(const ckpt::Extents& shape, uint64_t elements_max) {
  RunShape run{.dim = shape.size() - 1};
  while (run.dim > 0 && run.inner * shape[run.dim] < elements_max) {
    run.inner *= shape[run.dim];
    --run.dim;
  }
  run.indices = std::clamp<uint64_t>(elements_max / run.inner, 1, shape[run.dim]);
  return run;
}

// The run that starts at or before the element.
ckpt::Box run_at(const ckpt::Extents& shape, const RunShape& run, uint64_t element) {
  ckpt::Box box = ckpt::whole(shape);
  uint64_t rest = element / run.inner;
  const uint64_t first = rest % shape[run.dim] / run.indices * run.indices;
  box.offsets[run.dim] = first;
  box.sizes[run.dim] = std::min(run.indices, shape[run.dim] - first);
  rest /= shape[run.dim];
  for (size_t dim = run.dim; dim-- > 0;) {
    box.offsets[dim] = rest % shape[dim];
    box.sizes[dim] = 1;
    rest /= shape[dim];
  }
  return box;
}

}  // namespace

std::vector<ckpt::Box> spread_boxes(const ckpt::Extents& shape, uint64_t element_count_max) {
  const uint64_t count = ckpt::element_count(shape);
  if (count <= element_count_max || shape.empty()) return {ckpt::whole(shape)};
  const RunShape run = run_shape(shape, std::min(element_count_max, kRunElements));
  const uint64_t run_elements = run.indices * run.inner;
  const uint64_t runs = std::max<uint64_t>(1, element_count_max / run_elements);
  std::vector<ckpt::Box> boxes;
  for (uint64_t i = 0; i < runs; ++i) {
    const auto at = static_cast<uint64_t>(static_cast<unsigned __int128>(count) * i / runs);
    ckpt::Box box = run_at(shape, run, at);
    if (boxes.empty() || !(box == boxes.back())) boxes.push_back(std::move(box));
  }
  return boxes;
}

std::vector<uint64_t> shared_out(std::span<const TensorRef> tensors, uint64_t bytes_max) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return ckpt::count_bytes(*tensors[i]); });
  std::vector<uint64_t> shares(tensors.size());
  uint64_t left_bytes = bytes_max, left = tensors.size();
  for (const size_t i : order) {
    shares[i] = std::min(ckpt::count_bytes(*tensors[i]), left_bytes / left);
    left_bytes -= shares[i];
    --left;
  }
  return shares;
}

}  // namespace optim
