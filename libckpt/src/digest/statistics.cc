#include <ckpt/statistics.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "model/element.h"
#include "read/payload_reader.h"

namespace ckpt {
namespace {

constexpr uint64_t kSlabBytes = uint64_t{4} << 20;

// Mean and variance of numbers that arrive one by one: blocks of a fixed count in two passes,
// merged by the parallel formula of Chan, Golub and LeVeque (1979), so that large means lose no
// digits.
class MomentSum {
 public:
  void add(double value) {
    block_[block_count_++] = value;
    if (block_count_ == block_.size()) merge_block();
  }
  std::optional<Statistics::Moments> result() {
    if (block_count_ != 0) merge_block();
    if (count_ == 0) return std::nullopt;
    return Statistics::Moments{min_, max_, mean_, std::sqrt(squares_ / count_)};
  }

 private:
  void merge_block() {
    const double block_count = static_cast<double>(block_count_);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < block_count_; ++i) sum += block_[i];
    const double mean = sum / block_count;
    for (size_t i = 0; i < block_count_; ++i) {
      squares += (block_[i] - mean) * (block_[i] - mean);
      min_ = std::min(min_, block_[i]);
      max_ = std::max(max_, block_[i]);
    }
    const double gap = mean - mean_;
    const double total = count_ + block_count;
    mean_ += gap * block_count / total;
    squares_ += squares + gap * gap * count_ * block_count / total;
    count_ = total;
    block_count_ = 0;
  }

  std::array<double, 4096> block_ = {};
  size_t block_count_ = 0;
  double count_ = 0, mean_ = 0, squares_ = 0;
  double min_ = INFINITY, max_ = -INFINITY;
};

class Collector {
 public:
  Collector(DType dtype, size_t first_values_max)
      : dtype_(dtype), first_values_max_(first_values_max) {}

  void add(std::span<const std::byte> bytes) {
    const uint64_t element_bytes = bytes_per_element(dtype_);
    found_.element_count += bytes.size() / element_bytes;
    for (uint64_t at = 0; found_.first_values.size() < first_values_max_ && at < bytes.size();
         at += element_bytes) {
      found_.first_values.push_back(element_text(dtype_, bytes.data() + at));
    }
    visit_element(dtype_, [&](auto element) { add_as<decltype(element)>(bytes); });
  }

  Statistics result() {
    if (!is_complex(dtype_)) found_.moments = moments_.result();
    return found_;
  }

 private:
  template <class Element>
  void add_as(std::span<const std::byte> bytes) {
    constexpr size_t kNumberBytes = sizeof(typename Element::Bits);
    const size_t step = bytes_per_element(dtype_);
    for (size_t at = 0; at < bytes.size(); at += step) {
      const double first = Element::value(load_bits<Element>(bytes.data() + at));
      const double second =
          step == kNumberBytes
              ? 0
              : Element::value(load_bits<Element>(bytes.data() + at + kNumberBytes));
      count(first, second);
    }
  }

  void count(double first, double second) {
    if (std::isnan(first) || std::isnan(second)) {
      ++found_.nan_count;
    } else if (std::isinf(first) || std::isinf(second)) {
      ++found_.inf_count;
    } else {
      if (first == 0 && second == 0) ++found_.zero_count;
      moments_.add(first);
    }
  }

  DType dtype_;
  size_t first_values_max_;
  Statistics found_;
  MomentSum moments_;
};

}  // namespace

Statistics make_statistics(const TensorEntry& tensor, const PayloadSource& source,
                           size_t first_values_max) {
  const uint64_t total_bytes = count_bytes(tensor);
  std::vector<std::byte> slab(std::min(total_bytes, kSlabBytes));
  BoxReader reader(tensor, whole(tensor.shape), source);
  Collector collector(tensor.dtype, first_values_max);
  for (uint64_t left = total_bytes; left != 0;) {
    const auto piece = std::span(slab).first(std::min<uint64_t>(left, slab.size()));
    reader.read(piece);
    collector.add(piece);
    left -= piece.size();
  }
  return collector.result();
}

}  // namespace ckpt
