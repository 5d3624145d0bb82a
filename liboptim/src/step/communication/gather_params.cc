#include "step/communication/gather_params.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace optim {
namespace {

// Copies memory of one device: at once on the CPU, behind what is queued on a GPU.
inline void copy_bytes(std::byte* to, const std::byte* from, int64_t count,
                       const at::Device& device) {
  if (device.is_cpu()) {
    std::memcpy(to, from, static_cast<size_t>(count));
    return;
  }
  const auto options = at::TensorOptions(at::kByte).device(device);
  at::from_blob(to, {count}, options)
      .copy_(at::from_blob(const_cast<std::byte*>(from), {count}, options));
}

// Rounds that may be under way at once: their buffers bound the memory.
constexpr size_t kRoundsInFlight = 4;
constexpr size_t kBroadcastsAtOnce = 64;

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

// The bytes of some tensors, one after the other, as if they were contiguous.
class ByteStream {
 public:
  void append(const SharedParam& param) {
    params_.push_back(param);
    begins_.push_back(count_bytes_);
    count_bytes_ += static_cast<int64_t>(param.param.nbytes());
  }
  int64_t count_bytes() const { return count_bytes_; }
  std::span<const SharedParam> params() const { return params_; }
  int64_t begin_of(size_t i) const { return begins_[i]; }

  // Calls visit(bytes of the stream, their count, offset from `begin`) for [begin, end).
  template <class Visit>
  void for_each_part(int64_t begin, int64_t end, Visit&& visit) const {
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
    for (size_t i = static_cast<size_t>(after - begins_.begin()) - 1; i < params_.size(); ++i) {
      const auto size = static_cast<int64_t>(params_[i].param.nbytes());
      const int64_t from = std::max(begin, begins_[i]);
      const int64_t to = std::min(end, begins_[i] + size);
      if (begins_[i] >= end) break;
      if (from >= to) continue;  // an empty tensor
      visit(bytes_of(params_[i].param) + (from - begins_[i]), to - from, from - begin);
    }
  }

 private:
  std::vector<SharedParam> params_;
  std::vector<int64_t> begins_;
  int64_t count_bytes_ = 0;
};

int64_t rounds_of(int64_t bytes, int64_t bucket_bytes) {
  return (bytes + bucket_bytes - 1) / bucket_bytes;
}

class CopyingGather final : public ParamGather {
 public:
  CopyingGather(std::span<const SharedParam> params, int64_t bucket_bytes, Collectives& collectives)
      : collectives_(collectives), streams_(static_cast<size_t>(collectives.size())) {
    for (const SharedParam& param : params)
      streams_[static_cast<size_t>(param.owner)].append(param);
    for (const ByteStream& stream : streams_) longest_ = std::max(longest_, stream.count_bytes());
    if (!params.empty()) device_ = params.front().param.device();
    if (collectives.size() == 1) longest_ = 0;  // all is where it belongs
    bucket_bytes_ = std::max<int64_t>(1, std::min(bucket_bytes, longest_));
  }

  int64_t round_count() const override { return rounds_of(longest_, bucket_bytes_); }

  std::vector<uint32_t> needed_for(int64_t round) const override {
    std::vector<uint32_t> ids;
    for (size_t i = 0; i < own().params().size(); ++i) {
      if (own().begin_of(i) / bucket_bytes_ == round) ids.push_back(own().params()[i].id);
    }
    return ids;
  }

  void start(int64_t round) override {
    while (in_flight_.size() >= kRoundsInFlight) finish_first();
    Round next;
    next.begin = round * bucket_bytes_;
    const auto options = at::TensorOptions(at::kByte).device(device_);
    at::Tensor mine = at::empty({bucket_bytes_}, options);
    next.all = at::empty({bucket_bytes_ * collectives_.size()}, options);
    if (next.begin < end_in(own(), next.begin)) {
      own().for_each_part(next.begin, end_in(own(), next.begin),
                          [&](const std::byte* part, int64_t count, int64_t at) {
                            copy_bytes(bytes_of(mine) + at, part, count, device_);
                          });
    }
    next.wait = collectives_.start_all_gather(next.all, mine);
    in_flight_.push_back(std::move(next));
  }

  void finish() override {
    while (!in_flight_.empty()) finish_first();
  }

 private:
  struct Round {
    int64_t begin = 0;
    at::Tensor all;
    Collectives::Wait wait;
  };

  const ByteStream& own() const { return streams_[static_cast<size_t>(collectives_.rank())]; }
  int64_t end_in(const ByteStream& stream, int64_t begin) const {
    return std::min(begin + bucket_bytes_, stream.count_bytes());
  }

  void finish_first() {
    const Round round = std::move(in_flight_.front());
    in_flight_.pop_front();
    round.wait();
    for (int rank = 0; rank < collectives_.size(); ++rank) {
      const ByteStream& stream = streams_[static_cast<size_t>(rank)];
      const int64_t end = end_in(stream, round.begin);
      if (rank == collectives_.rank() || round.begin >= end) continue;
      const std::byte* const theirs = bytes_of(round.all) + rank * bucket_bytes_;
      stream.for_each_part(round.begin, end, [&](std::byte* part, int64_t count, int64_t at) {
        copy_bytes(part, theirs + at, count, device_);
      });
    }
  }

  Collectives& collectives_;
  at::Device device_ = at::kCPU;
  std::vector<ByteStream> streams_;
  int64_t longest_ = 0;
  int64_t bucket_bytes_ = 1;
  std::deque<Round> in_flight_;
};

constexpr int64_t kAlignmentBytes = 64;

}  // namespace

ParamGather::~ParamGather() = default;

std::unique_ptr<ParamGather> make_copying_gather(std::span<const SharedParam> params,
                                                 int64_t bucket_bytes, Collectives& collectives) {
  return std::make_unique<CopyingGather>(params, bucket_bytes, collectives);
}

void broadcast_params(std::span<const SharedParam> params, Collectives& collectives) {
  for (size_t first = 0; first < params.size(); first += kBroadcastsAtOnce) {
    std::vector<Collectives::Broadcast> some;
    for (const SharedParam& param :
         params.subspan(first, std::min(kBroadcastsAtOnce, params.size() - first))) {
      some.push_back({param.param, param.owner});
    }
    collectives.start_broadcasts(some)();
  }
}

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
