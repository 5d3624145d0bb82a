#include "step/gather_params.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace optim {
namespace {

constexpr int64_t kRoundBytes = int64_t{16} << 20;  // per process: the memory of a round

// The bytes of some tensors, one after the other, as if they were contiguous.
class ByteStream {
 public:
  void append(const at::Tensor& tensor) {
    tensors_.push_back(tensor);
    begins_.push_back(count_bytes_);
    count_bytes_ += static_cast<int64_t>(tensor.nbytes());
  }
  int64_t count_bytes() const { return count_bytes_; }

  // Calls visit(bytes of the stream, their count, offset from `begin`) for [begin, end).
  template <class Visit>
  void for_each_part(int64_t begin, int64_t end, Visit&& visit) const {
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
    for (size_t i = static_cast<size_t>(after - begins_.begin()) - 1; i < tensors_.size(); ++i) {
      const int64_t from = std::max(begin, begins_[i]);
      const int64_t to = std::min(end, begins_[i] + static_cast<int64_t>(tensors_[i].nbytes()));
      if (begins_[i] >= end) break;
      if (from >= to) continue;  // an empty tensor
      auto* const bytes = static_cast<std::byte*>(tensors_[i].mutable_data_ptr());
      visit(bytes + (from - begins_[i]), to - from, from - begin);
    }
  }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> begins_;
  int64_t count_bytes_ = 0;
};

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

}  // namespace

void gather_params(std::span<const Param> params, std::span<const int> owner,
                   Collectives& collectives) {
  if (collectives.size() == 1) return;
  std::vector<ByteStream> streams(static_cast<size_t>(collectives.size()));
  for (size_t i = 0; i < params.size(); ++i) {
    streams[static_cast<size_t>(owner[i])].append(params[i].param);
  }
  int64_t longest = 0;
  for (const ByteStream& stream : streams) longest = std::max(longest, stream.count_bytes());
  const int64_t round_bytes = std::min(kRoundBytes, longest);
  at::Tensor mine = at::empty({round_bytes}, at::kByte);
  at::Tensor all = at::empty({round_bytes * collectives.size()}, at::kByte);
  for (int64_t begin = 0; begin < longest; begin += round_bytes) {
    const auto part_end = [&](const ByteStream& stream) {
      return std::min(begin + round_bytes, stream.count_bytes());
    };
    const ByteStream& own = streams[static_cast<size_t>(collectives.rank())];
    if (begin < part_end(own)) {
      own.for_each_part(begin, part_end(own), [&](const std::byte* part, int64_t n, int64_t at) {
        std::memcpy(bytes_of(mine) + at, part, static_cast<size_t>(n));
      });
    }
    collectives.all_gather(all, mine);
    for (int rank = 0; rank < collectives.size(); ++rank) {
      const ByteStream& stream = streams[static_cast<size_t>(rank)];
      if (rank == collectives.rank() || begin >= part_end(stream)) continue;
      const std::byte* const theirs = bytes_of(all) + rank * round_bytes;
      stream.for_each_part(begin, part_end(stream), [&](std::byte* part, int64_t n, int64_t at) {
        std::memcpy(part, theirs + at, static_cast<size_t>(n));
      });
    }
  }
}

void broadcast_params(std::span<const Param> params, std::span<const int> owner,
                      Collectives& collectives) {
  for (size_t i = 0; i < params.size(); ++i) {
    at::Tensor tensor = params[i].param;
    collectives.broadcast(tensor, owner[i]);
  }
}

}  // namespace optim
