// bf16(fp32 master) equals the model's weight, bit for bit: what Megatron's optimizer leaves behind
// after every step. It proves which parameter a numbered master belongs to.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include <ckpt/error.h>
#include <ckpt/tensor_stream.h>
#include <optim/layer_wise_checkpoint.h>

#include "layout/layer_wise_view.h"
#include "layout/rounding.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::TensorEntry;

constexpr size_t kPieceElements = size_t{1} << 18;

// What two weights of one shape have in common only when they are equal, but for chance of 2^-64.
struct Fingerprint {
  uint64_t bits = 0xcbf29ce484222325;
  void add(std::span<const uint16_t> values) {
    for (const uint16_t value : values) bits = (bits ^ value) * 0x100000001b3;
  }
};

class Proof {
 public:
  Proof(const LayerWiseCheckpoint& view, const ckpt::Checkpoint& source)
      : view_(view), source_(source) {}

  std::vector<AmbiguousParam> run() {
    for (const LayerWiseParam& param : view_.params) {
      const uint64_t fingerprint = prove(param);
      alike_[{param.info.shape, fingerprint}].push_back(param.info.name);
    }
    return ambiguous();
  }

 private:
  // Compares rounded master and weight piece by piece; returns the weight's fingerprint.
  uint64_t prove(const LayerWiseParam& param) {
    const std::string key = state_key(kMasterState, param.info.name);
    const TensorEntry& master = *view_.tensors.find_tensor(key);
    const TensorEntry& weight = *view_.tensors.find_tensor(param.info.name);
    if (weight.dtype != ckpt::DType::BFloat16 && weight.dtype != ckpt::DType::Float16) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                  "a model weight of type " + std::string(ckpt::name(weight.dtype)) +
                      " cannot be told by its master");
    }
    ckpt::TensorStream masters(master, source_), weights(weight, source_);
    Fingerprint fingerprint;
    while (weights.left_bytes() > 0) {
      const size_t count = std::min(kPieceElements, weights.left_bytes() / sizeof(uint16_t));
      masters.read(std::as_writable_bytes(std::span(masters_).first(count)));
      weights.read(std::as_writable_bytes(std::span(weights_).first(count)));
      if (!rounds_to(weight.dtype, count)) refuse(param, master);
      fingerprint.add(std::span(weights_).first(count));
    }
    return fingerprint.bits;
  }

  bool rounds_to(ckpt::DType dtype, size_t count) const {
    const auto round = dtype == ckpt::DType::BFloat16 ? round_to_bfloat16 : round_to_float16;
    for (size_t i = 0; i < count; ++i) {
      if (round(masters_[i]) != weights_[i]) return false;
    }
    return true;
  }

  // Damage is told from a wrong name by the archives' checksums.
  [[noreturn]] void refuse(const LayerWiseParam& param, const TensorEntry& master) const {
    source_.check_crc(master);
    source_.check_crc(*view_.tensors.find_tensor(param.info.name));
    const ckpt::StorageRegion& region = master.chunks.at(0).region;
    throw Error(
        ErrorCode::Corrupt,
        {source_.file_name(region.file), region.bytes.offset_bytes,
         state_key(kMasterState, param.info.name)},
        "the master does not round to the model's weight '" + ckpt::escaped(param.info.name) + "'",
        "the optimizer state belongs to another parameter, iteration or run");
  }

  std::vector<AmbiguousParam> ambiguous() const {
    std::vector<AmbiguousParam> result;
    for (const LayerWiseParam& param : view_.params) {
      for (const auto& [what, names] : alike_) {
        if (names.size() < 2 ||
            std::find(names.begin(), names.end(), param.info.name) == names.end()) {
          continue;
        }
        AmbiguousParam entry{param.info.name, names};
        std::erase(entry.also_fits, param.info.name);
        result.push_back(std::move(entry));
      }
    }
    return result;
  }

  const LayerWiseCheckpoint& view_;
  const ckpt::Checkpoint& source_;
  std::vector<float> masters_ = std::vector<float>(kPieceElements);
  std::vector<uint16_t> weights_ = std::vector<uint16_t>(kPieceElements);
  std::map<std::pair<std::vector<int64_t>, uint64_t>, std::vector<std::string>> alike_;
};

}  // namespace

std::vector<AmbiguousParam> prove_assignment(const LayerWiseCheckpoint& checkpoint,
                                             const ckpt::Checkpoint& source) {
  return Proof(checkpoint, source).run();
}

}  // namespace optim
