#include "compare/compare_tensors.h"

#include <algorithm>

#include <ckpt/error.h>

#include "compare/compare_elements.h"
#include "read/payload_reader.h"
#include "work/slab_workers.h"
#include "work/work_meter.h"

namespace ckpt {
namespace {

// One side's elements in row-major order.
class Side {
 public:
  Side(const TensorEntry& tensor, const PayloadSource& source)
      : tensor_(tensor), reader_(tensor, whole(tensor.shape), source) {}
  void read(std::span<std::byte> out) {
    try {
      reader_.read(out);
    } catch (Error& error) {
      throw error.within({.file = tensor_.file, .key = tensor_.key});
    }
  }

 private:
  const TensorEntry& tensor_;
  BoxReader reader_;
};

std::optional<ValueDifference> compare(const TensorPair& pair, const SourcePair& sources,
                                       ElementComparer comparer,
                                       const std::function<std::span<std::byte>(uint64_t)>& step) {
  Side a(pair.a, sources.a), b(pair.b, sources.b);
  for (uint64_t left = count_bytes(pair.a); left != 0;) {
    const auto buffers = step(left);
    const auto a_bytes = buffers.first(buffers.size() / 2);
    const auto b_bytes = buffers.last(buffers.size() / 2);
    a.read(a_bytes);
    b.read(b_bytes);
    comparer.compare(a_bytes, b_bytes);
    left -= a_bytes.size();
  }
  if (!comparer.found_difference()) return std::nullopt;
  return comparer.result(pair.a.shape);
}

}  // namespace

std::vector<std::optional<ValueDifference>> compare_tensors(const std::vector<TensorPair>& pairs,
                                                            const SourcePair& sources,
                                                            const DiffOptions& options) {
  uint64_t total_bytes = 0;
  for (const TensorPair& pair : pairs) total_bytes += 2 * count_bytes(pair.a);
  WorkMeter meter(options.execution, total_bytes);
  std::vector<std::optional<ValueDifference>> differences(pairs.size());
  run_with_slabs(pairs.size(), options.execution, [&](size_t i, std::span<std::byte> slab) {
    const auto step = [&](uint64_t left_bytes) {
      const auto buffers = slab.first(2 * std::min<uint64_t>(left_bytes, slab.size() / 2));
      meter.advance(buffers.size());
      return buffers;
    };
    const ElementComparer comparer(pairs[i].a.dtype, {options.atol, options.rtol});
    differences[i] = compare(pairs[i], sources, comparer, step);
  });
  return differences;
}

}  // namespace ckpt
