// Gathering without copies: each process's parameters lie side by side in one buffer.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "step/communication/gather_params.h"

namespace optim {

namespace {

constexpr int64_t kAlignmentBytes = 64;

}  // namespace

// A round broadcasts the next part of each process's region from there, in place.
class AdoptedGather final : public ParamGather {
 public:
  AdoptedGather(const AdoptedBuffer& buffer, int64_t bucket_bytes, Collectives& collectives)
      : buffer_(buffer),
        bucket_bytes_(std::max<int64_t>(1, bucket_bytes)),
        collectives_(collectives) {
    if (collectives.size() == 1) return;
    for (int rank = 0; rank < collectives.size(); ++rank) {
      rounds_ = std::max(rounds_, (region_bytes(rank) + bucket_bytes_ - 1) / bucket_bytes_);
    }
  }

  int64_t round_count() const override { return rounds_; }

  std::vector<uint32_t> needed_for(int64_t round) const override {
    std::vector<uint32_t> ids;
    for (const AdoptedBuffer::Range& range : buffer_.ranges_) {
      const bool is_own = range.owner == collectives_.rank();
      if (is_own && range.begin / bucket_bytes_ == round) ids.push_back(range.id);
    }
    return ids;
  }

  void start(int64_t round) override {
    std::vector<Collectives::Broadcast> parts;
    for (int rank = 0; rank < collectives_.size(); ++rank) {
      const int64_t begin = round * bucket_bytes_;
      const int64_t end = std::min(begin + bucket_bytes_, region_bytes(rank));
      if (begin >= end) continue;
      const int64_t region = buffer_.region_begin_[static_cast<size_t>(rank)];
      parts.push_back({buffer_.bytes_.narrow(0, region + begin, end - begin), rank});
    }
    waits_.push_back(collectives_.start_broadcasts(parts));
  }

  void finish() override {
    for (const Collectives::Wait& wait : waits_) wait();
    waits_.clear();
  }

 private:
  int64_t region_bytes(int rank) const {
    const auto at = static_cast<size_t>(rank);
    return buffer_.region_begin_[at + 1] - buffer_.region_begin_[at];
  }

  const AdoptedBuffer& buffer_;
  int64_t bucket_bytes_;
  Collectives& collectives_;
  int64_t rounds_ = 0;
  std::vector<Collectives::Wait> waits_;
};

AdoptedBuffer::AdoptedBuffer(std::span<const SharedParam> params, int process_count) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> ends(static_cast<size_t>(process_count), 0);
  for (const SharedParam& param : params) {
    int64_t& end = ends[static_cast<size_t>(param.owner)];
    const auto bytes = static_cast<int64_t>(param.param.nbytes());
    ranges_.push_back({param.id, param.owner, end, end + bytes});
    end += (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  }
  region_begin_ = {0};
  for (const int64_t end : ends) region_begin_.push_back(region_begin_.back() + end);
  const at::Device device = params.empty() ? at::kCPU : params.front().param.device();
  bytes_ = at::zeros({region_begin_.back()}, at::TensorOptions(at::kByte).device(device));
  for (size_t i = 0; i < params.size(); ++i) {
    at::Tensor param = params[i].param;
    const Range& range = ranges_[i];
    const int64_t begin = region_begin_[static_cast<size_t>(range.owner)] + range.begin;
    const at::Tensor view = bytes_.narrow(0, begin, range.end - range.begin)
                                .view(param.scalar_type())
                                .view(param.sizes());
    view.copy_(param);
    param.set_data(view);
  }
}

std::unique_ptr<ParamGather> AdoptedBuffer::make_gather(int64_t bucket_bytes,
                                                        Collectives& collectives) const {
  return std::make_unique<AdoptedGather>(*this, bucket_bytes, collectives);
}

}  // namespace optim
