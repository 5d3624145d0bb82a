// 16-bit remainders of masters: which they are, and what they may hold.
#include "state/remainders.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <ckpt/tensor_stream.h>

#include "state/words.h"

namespace optim {
namespace {

constexpr size_t kRemainderPieceElements = size_t{1} << 16;

void require_integers(const TensorEntry& tensor, const ckpt::Checkpoint& source,
                      const std::stop_token& stop) {
  std::vector<float> buffer(kRemainderPieceElements);
  ckpt::TensorStream stream(tensor, source);
  uint64_t position = 0;
  while (stream.left_bytes() > 0) {
    if (stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
    const size_t count = std::min(kRemainderPieceElements, stream.left_bytes() / sizeof(float));
    const auto piece = std::span(buffer).first(count);
    stream.read(std::as_writable_bytes(piece));
    const auto wrong = std::ranges::find_if_not(piece, is_remainder);
    if (wrong != piece.end()) {
      source.check_crc(tensor);  // damage of the file is told as such
      position += static_cast<uint64_t>(wrong - piece.begin());
      throw Error(ErrorCode::Corrupt, {.file = {}, .key = tensor.key},
                  "its element " + std::to_string(position) +
                      " is not an integer of 16 bits, as the remainders of masters are");
    }
    position += count;
  }
}

}  // namespace

bool is_remainder(float value) {
  return value >= -32768.0f && value <= 32767.0f && value == std::trunc(value);
}

void require_remainders(const TrainingState& state, const ckpt::Checkpoint& source,
                        const std::stop_token& stop) {
  for (const TrainedParam& param : state.params) {
    const StateTensor* const remainder = remainder_of(param);
    if (remainder == nullptr || remainder->value->dtype != DType::Float32) continue;
    require_integers(*remainder->value, source, stop);
  }
}

}  // namespace optim
