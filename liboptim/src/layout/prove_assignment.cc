// bf16(fp32 master) equals the model's weight, bit for bit: what Megatron's optimizer leaves behind
// after every step. It proves which parameter a numbered master belongs to.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

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
constexpr unsigned kThreadsMax = 8;    // of up to 4 MiB each: kProofBytesMax
constexpr size_t kBlockElements = 32;  // of weights: 64 bytes

// What two weights of one shape have in common only when they are equal, but for chance: eight
// chains of 64-bit words, each step a bijection.
class Fingerprint {
 public:
  // Whole blocks, but for the last call.
  void add(std::span<const uint16_t> values) {
    for (; values.size() >= kBlockElements; values = values.subspan(kBlockElements)) {
      add_block(values.data());
    }
    std::array<uint16_t, kBlockElements> last = {};
    std::ranges::copy(values, last.begin());
    if (!values.empty()) add_block(last.data());
  }
  uint64_t finish() const {
    uint64_t bits = 0;
    for (const uint64_t chain : chains_) bits = mixed(bits ^ chain);
    return bits;
  }

 private:
  // Multiplying by an odd number loses nothing, but moves nothing down: the highest bits would stay
  // where they are.
  static uint64_t mixed(uint64_t word) { return std::rotl(word * 0x9E3779B97F4A7C15, 29); }

  void add_block(const uint16_t* values) {
    std::array<uint64_t, 8> words;
    std::memcpy(words.data(), values, sizeof(words));
    for (size_t i = 0; i < words.size(); ++i) chains_[i] = mixed(chains_[i] ^ words[i]);
  }

  std::array<uint64_t, 8> chains_ = {};
};

// A fixed number of elements without a branch, which the compiler turns into vector instructions.
bool block_rounds_to_bfloat16(const float* masters, const uint16_t* weights) {
  uint32_t difference = 0;
  for (size_t i = 0; i < kBlockElements; ++i) {
    const auto bits = std::bit_cast<uint32_t>(masters[i]);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    difference |= (is_nan ? 0x7FC0 : rounded) ^ weights[i];
  }
  return difference == 0;
}

// Of one process: neighbouring parameters, as many elements as the other processes have.
std::vector<const LayerWiseParam*> params_of(const LayerWiseCheckpoint& view,
                                             const ckpt::Share& share) {
  uint64_t all_elements = 0, elements_before = 0;
  const auto count = [&](const LayerWiseParam& param) {
    return ckpt::element_count(view.tensors.find_tensor(param.info.name)->shape);
  };
  for (const LayerWiseParam& param : view.params) all_elements += count(param);
  const uint64_t share_elements = all_elements / share.world_size + 1;
  std::vector<const LayerWiseParam*> own;
  for (const LayerWiseParam& param : view.params) {
    if (elements_before / share_elements == share.rank) own.push_back(&param);
    elements_before += count(param);
  }
  return own;
}

class Proof {
 public:
  Proof(const LayerWiseCheckpoint& view, const ckpt::Checkpoint& source,
        const ProofOptions& options)
      : view_(view),
        source_(source),
        stop_(options.stop),
        params_(params_of(view, options.share)),
        fingerprints_(params_.size()) {}

  std::vector<AmbiguousParam> run(unsigned threads) {
    {
      std::vector<std::jthread> others;
      for (unsigned i = 1; i < threads; ++i) others.emplace_back([this] { work(); });
      work();
    }
    if (error_) std::rethrow_exception(error_);
    return ambiguous();
  }

 private:
  struct Buffers {
    std::vector<float> masters = std::vector<float>(kPieceElements);
    std::vector<uint16_t> weights = std::vector<uint16_t>(kPieceElements);
  };

  void work() {
    std::optional<Buffers> buffers;
    for (size_t param = next_++; param < params_.size(); param = next_++) {
      try {
        if (!buffers) buffers.emplace();
        fingerprints_[param] = prove(*params_[param], *buffers);
      } catch (...) {
        fail(param, std::current_exception());
      }
    }
  }

  // All parameters before a failed one were started: the first failure is always the one reported.
  void fail(size_t param, std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    next_ = params_.size();
    if (error_ && param > failed_param_) return;
    failed_param_ = param;
    error_ = std::move(error);
  }

  // Compares rounded master and weight piece by piece; returns the weight's fingerprint.
  uint64_t prove(const LayerWiseParam& param, Buffers& buffers) {
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
      if (stop_.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
      const size_t count = std::min(kPieceElements, weights.left_bytes() / sizeof(uint16_t));
      const std::span<float> rounded = std::span(buffers.masters).first(count);
      const std::span<uint16_t> expected = std::span(buffers.weights).first(count);
      masters.read(std::as_writable_bytes(rounded));
      weights.read(std::as_writable_bytes(expected));
      if (!round_to(weight.dtype, rounded, expected)) refuse(param, master);
      fingerprint.add(expected);
    }
    return fingerprint.finish();
  }

  static bool round_to(ckpt::DType dtype, std::span<const float> masters,
                       std::span<const uint16_t> weights) {
    size_t i = 0;
    if (dtype == ckpt::DType::BFloat16) {
      for (; i + kBlockElements <= masters.size(); i += kBlockElements) {
        if (!block_rounds_to_bfloat16(&masters[i], &weights[i])) return false;
      }
    }
    const auto round = dtype == ckpt::DType::BFloat16 ? round_to_bfloat16 : round_to_float16;
    for (; i < masters.size(); ++i) {
      if (round(masters[i]) != weights[i]) return false;
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

  // Parameters that some other one equals, in the order of the model.
  std::vector<AmbiguousParam> ambiguous() const {
    std::map<std::pair<std::vector<int64_t>, uint64_t>, std::vector<std::string>> alike;
    for (size_t i = 0; i < fingerprints_.size(); ++i) {
      const ParamInfo& info = params_[i]->info;
      alike[{info.shape, fingerprints_[i]}].push_back(info.name);
    }
    std::vector<AmbiguousParam> result;
    for (size_t i = 0; i < fingerprints_.size(); ++i) {
      const ParamInfo& info = params_[i]->info;
      const auto& names = alike.at({info.shape, fingerprints_[i]});
      if (names.size() < 2) continue;
      result.push_back({info.name, names});
      std::erase(result.back().also_fits, info.name);
    }
    return result;
  }

  const LayerWiseCheckpoint& view_;
  const ckpt::Checkpoint& source_;
  const std::stop_token stop_;
  std::vector<const LayerWiseParam*> params_;
  std::vector<uint64_t> fingerprints_;  // by parameter
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  size_t failed_param_ = 0;
  std::exception_ptr error_;
};

}  // namespace

std::vector<AmbiguousParam> prove_assignment(const LayerWiseCheckpoint& checkpoint,
                                             const ckpt::Checkpoint& source,
                                             const ProofOptions& options) {
  const unsigned wanted =
      options.threads != 0 ? options.threads : std::thread::hardware_concurrency();
  return Proof(checkpoint, source, options).run(std::clamp(wanted, 1u, kThreadsMax));
}

}  // namespace optim
