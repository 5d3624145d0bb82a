#include <optim/matrix_split.h>

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "step/communication/collectives.h"

namespace optim {
namespace {

class GroupRanks final : public MatrixRanks {
 public:
  explicit GroupRanks(const ProcessGroupPtr& group) : collectives_(group) {}
  GroupRanks(const ProcessGroupPtr& group, const Collectives& other) : collectives_(group) {
    collectives_.share_failures_with(other);
  }

  int rank() const override { return collectives_.rank(); }

  // As bytes, which every backend carries; the shorter ones with padding.
  std::vector<at::Tensor> all_gather(const at::Tensor& mine,
                                     std::span<const int64_t> counts) override {
    const int64_t longest = *std::ranges::max_element(counts);
    at::Tensor padded = mine.view({-1});
    if (padded.numel() < longest) {
      padded = at::zeros({longest}, mine.options());
      padded.narrow(0, 0, mine.numel()).copy_(mine.view({-1}));
    }
    const at::Tensor all = at::zeros({collectives_.size() * longest}, mine.options());
    at::Tensor all_bytes = all.view(at::kByte), mine_bytes = padded.view(at::kByte);
    collectives_.all_gather(all_bytes, mine_bytes);
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < collectives_.size(); ++rank) {
      parts.push_back(all.narrow(0, rank * longest, counts[static_cast<size_t>(rank)]));
    }
    return parts;
  }

 private:
  Collectives collectives_;
};

}  // namespace

MatrixRanks::~MatrixRanks() = default;

std::shared_ptr<MatrixRanks> make_matrix_ranks(const ProcessGroupPtr& group) {
  return std::make_shared<GroupRanks>(group);
}

std::shared_ptr<MatrixRanks> make_matrix_ranks(const ProcessGroupPtr& group,
                                               const Collectives& other) {
  return std::make_shared<GroupRanks>(group, other);
}

}  // namespace optim
