#include "report/page/marks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace optim {
namespace {

// Times the median of a state over the parameters, or a part of it.
constexpr double kFar = 1000;
constexpr size_t kEnoughForMedian = 4;

std::optional<double> root_mean_square(const ReportedTensor& tensor) {
  if (!tensor.figures || !tensor.figures->moments) return std::nullopt;
  const TensorFigures& figures = *tensor.figures;
  const uint64_t finite = figures.element_count - figures.nan_count - figures.inf_count;
  if (finite == 0) return std::nullopt;
  return figures.moments->norm / std::sqrt(static_cast<double>(finite));
}

bool is_state(const ReportedTensor& tensor) {
  return tensor.tensor.role == KeyKind::OptimizerState &&
         ckpt::element_count(tensor.tensor.shape) > 1;
}

std::map<std::string, double> medians_of(std::span<const ReportedTensor> tensors) {
  std::map<std::string, std::vector<double>> all;
  for (const ReportedTensor& tensor : tensors) {
    const auto size = root_mean_square(tensor);
    if (is_state(tensor) && size && *size > 0) all[tensor.tensor.state].push_back(*size);
  }
  std::map<std::string, double> medians;
  for (auto& [state, sizes] : all) {
    if (sizes.size() < kEnoughForMedian) continue;
    const auto middle = sizes.begin() + static_cast<ptrdiff_t>(sizes.size() / 2);
    std::ranges::nth_element(sizes, middle);
    medians[state] = *middle;
  }
  return medians;
}

}  // namespace

std::string_view name(Mark mark) {
  static constexpr std::string_view kNames[] = {"not_finite", "all_zero", "large", "small"};
  return kNames[static_cast<size_t>(mark)];
}

void add_marks(std::span<ReportedTensor> tensors) {
  const std::map<std::string, double> medians = medians_of(tensors);
  for (ReportedTensor& tensor : tensors) {
    if (!tensor.figures) continue;
    const TensorFigures& figures = *tensor.figures;
    if (figures.nan_count != 0 || figures.inf_count != 0) tensor.marks.push_back(Mark::NotFinite);
    if (!is_state(tensor)) continue;
    const bool is_whole = figures.element_count == ckpt::element_count(tensor.tensor.shape);
    if (figures.zero_count == figures.element_count && !is_whole) continue;  // of a sample
    if (figures.zero_count == figures.element_count) {
      tensor.marks.push_back(Mark::AllZero);
      continue;
    }
    const auto size = root_mean_square(tensor);
    const auto median = medians.find(tensor.tensor.state);
    if (!size || median == medians.end()) continue;
    if (*size > kFar * median->second) tensor.marks.push_back(Mark::Large);
    if (*size * kFar < median->second) tensor.marks.push_back(Mark::Small);
  }
}

}  // namespace optim
