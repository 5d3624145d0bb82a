#include <ckpt/tensor_stream.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "read/payload_reader.h"

namespace ckpt {

struct TensorStream::State {
  State(TensorEntry entry, const PayloadSource& source)
      : tensor(std::move(entry)), reader(tensor, whole(tensor.shape), source) {}
  TensorEntry tensor;
  BoxReader reader;
};

TensorStream::TensorStream(TensorEntry tensor, const PayloadSource& source)
    : state_(std::make_unique<State>(std::move(tensor), source)) {}
TensorStream::TensorStream(TensorStream&&) noexcept = default;
TensorStream::~TensorStream() = default;

uint64_t TensorStream::left_bytes() const { return state_->reader.left_bytes(); }
void TensorStream::read(std::span<std::byte> out) { state_->reader.read(out); }

bool same_bytes(const TensorEntry& a, const PayloadSource& source_a, const TensorEntry& b,
                const PayloadSource& source_b) {
  constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
  if (count_bytes(a) != count_bytes(b)) return false;
  TensorStream stream_a(a, source_a), stream_b(b, source_b);
  std::vector<std::byte> bytes_a(std::min(kPieceBytes, count_bytes(a))), bytes_b(bytes_a.size());
  while (stream_a.left_bytes() > 0) {
    const size_t piece = std::min<uint64_t>(stream_a.left_bytes(), bytes_a.size());
    stream_a.read(std::span(bytes_a).first(piece));
    stream_b.read(std::span(bytes_b).first(piece));
    if (std::memcmp(bytes_a.data(), bytes_b.data(), piece) != 0) return false;
  }
  return true;
}

}  // namespace ckpt
