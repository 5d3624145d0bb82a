// Largest values in rows that are left out.
#include "convert/cut_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <ckpt/statistics.h>

#include "grid/placement.h"

namespace optim {
namespace {

// The rows from `first` on, as a tensor of their own.
ckpt::TensorEntry rows_from(const ckpt::TensorEntry& tensor, uint64_t first) {
  ckpt::TensorEntry rest = tensor;
  rest.shape[0] -= first;
  rest.chunks.clear();
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
  for (ckpt::Chunk chunk : tensor.chunks) {
    const uint64_t begin = chunk.box.offsets[0], end = begin + chunk.box.sizes[0];
    if (end <= first || chunk.view) continue;
    const uint64_t skipped = begin < first ? first - begin : 0;
    const uint64_t row = ckpt::element_count(chunk.box.sizes) / chunk.box.sizes[0];
    chunk.payload_offset_bytes += skipped * row * element_bytes;
    chunk.box.offsets[0] = begin + skipped - first;
    chunk.box.sizes[0] -= skipped;
    rest.chunks.push_back(std::move(chunk));
  }
  return rest;
}

double largest_in(const ckpt::TensorEntry& tensor, const ckpt::PayloadSource& source,
                  uint64_t first) {
  if (tensor.shape.empty() || tensor.shape[0] <= first) return 0;
  const auto moments = ckpt::make_statistics(rows_from(tensor, first), source, 0).moments;
  return moments ? std::max(std::abs(moments->min), std::abs(moments->max)) : 0;
}

}  // namespace

void tell_cut_rows(const TrainingState& view, const ckpt::PayloadSource& source, uint64_t rows,
                   ckpt::Target& target) {
  for (const TrainedParam& param : view.params) {
    if (rows == 0 || !is_vocabulary(view, param.info.name)) continue;
    if (param.weight->shape[0] <= rows) continue;
    double largest = largest_in(*param.weight, source, rows);
    if (param.master) largest = std::max(largest, largest_in(*param.master, source, rows));
    for (const StateTensor& state : param.states) {
      largest = std::max(largest, largest_in(*state.value, source, rows));
    }
    for (ckpt::NotCarried& loss : target.not_carried) {
      if (loss.what != param.info.name || !loss.is_changed) continue;
      char text[64];
      std::snprintf(text, sizeof text, "; the largest value in them is %.9g", largest);
      loss.reason += text;
    }
  }
}

}  // namespace optim
