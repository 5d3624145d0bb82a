// bf16(fp32 master) equals the model's weight, bit for bit (any NaN equals any): what Megatron's
// optimizer leaves behind after every step. It proves which parameter a numbered master belongs to.
// Of a float32 weight the master is a copy.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include <ckpt/run_jobs.h>
#include <ckpt/tensor_stream.h>
#include <training/prove_assignment.h>

#include "state/passing_proof.h"
#include "state/remainders.h"
#include "state/value_scan.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr size_t kProvenPieceElements = size_t{1} << 16;  // which a core's own cache holds
constexpr unsigned kThreadsMax = 8;
constexpr size_t kBlockElements = 32;
constexpr size_t kAlsoFitsMax = 8;  // named of those that are alike

// A fixed number of elements without a branch, which the compiler turns into vector instructions.
bool block_rounds_to_bfloat16(const float* masters, const uint16_t* weights) {
  uint32_t difference = 0;
  for (size_t i = 0; i < kBlockElements; ++i) {
    const auto bits = std::bit_cast<uint32_t>(masters[i]);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    difference |= (is_nan ? kBFloat16NaN : rounded) ^ with_one_nan_bfloat16(weights[i]);
  }
  return difference == 0;
}

// Names that files state are checked where they can be; names that were computed must be.
bool may_be_proven(const TrainedParam& param, bool is_computed) {
  if (!param.master) return false;
  const DType dtype = param.weight->dtype;
  return is_computed || dtype == DType::BFloat16 || dtype == DType::Float16 ||
         (is_own_master(dtype) && param.master->dtype == dtype);
}

// Of one process: neighbouring parameters, as many elements as the other processes have.
std::vector<const TrainedParam*> params_of(const FiledState& state, const ckpt::Share& share) {
  uint64_t all_elements = 0, elements_before = 0;
  const auto count = [&](const TrainedParam& param) {
    return ckpt::element_count(param.weight->shape);
  };
  for (const TrainedParam& param : state.params) all_elements += count(param);
  const uint64_t share_elements = all_elements / share.world_size + 1;
  std::vector<const TrainedParam*> own;
  for (const TrainedParam& param : state.params) {
    const bool is_computed = are_names_computed(state);
    if (elements_before / share_elements == share.rank && may_be_proven(param, is_computed)) {
      own.push_back(&param);
    }
    elements_before += count(param);
  }
  return own;
}

class Proof {
 public:
  Proof(const FiledState& state, const ckpt::Checkpoint& source, const ProofOptions& options,
        const PassingProof* passed)
      : state_(state),
        source_(source),
        payloads_(options.payloads != nullptr ? *options.payloads : source),
        passed_(passed),
        options_(options),
        params_(params_of(state, options.share)),
        fingerprints_(params_.size()) {
    for (size_t param = 0; param < params_.size(); ++param) {
      if (!passed_sum(param)) progress_.total_bytes += read_bytes(element_count(param));
    }
  }

  std::vector<AmbiguousParam> run(unsigned threads) {
    std::vector<std::optional<Buffers>> buffers(threads);
    ckpt::run_jobs(params_.size(), threads, [&](size_t param, unsigned worker) {
      const auto passed = passed_sum(param);
      if (!passed && !buffers[worker]) buffers[worker].emplace();
      fingerprints_[param] = passed ? *passed : prove(*params_[param], *buffers[worker]);
    });
    return ambiguous();
  }

 private:
  struct Buffers {
    std::vector<float> masters = std::vector<float>(kProvenPieceElements);
    std::vector<uint16_t> weights = std::vector<uint16_t>(2 * kProvenPieceElements);
  };

  // Of a parameter that was proven while it passed.
  std::optional<uint64_t> passed_sum(size_t param) const {
    if (passed_ == nullptr) return std::nullopt;
    return passed_->proven(index_in_state(*params_[param]));
  }

  size_t index_in_state(const TrainedParam& param) const {
    return static_cast<size_t>(&param - state_.params.data());
  }

  uint64_t element_count(size_t param) const {
    return ckpt::element_count(params_[param]->weight->shape);
  }

  static uint64_t read_bytes(uint64_t elements) {
    return elements * (sizeof(float) + sizeof(uint16_t));  // master and weight
  }

  void advance(size_t elements) {
    if (!options_.on_progress) return;
    const std::scoped_lock lock(mutex_);
    progress_.done_bytes += read_bytes(elements);
    options_.on_progress(progress_);
  }

  // Compares rounded master and weight piece by piece; returns the weight's sum.
  uint64_t prove(const TrainedParam& param, Buffers& buffers) {
    const auto boxes = compared_boxes(param);
    if (!boxes || boxes->size() == 1) {
      return prove_tensors(param, {*param.weight, *param.master}, buffers);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < boxes->size(); ++i) {
      sum = joined_sum(sum, prove_box(param, i, (*boxes)[i], buffers));
    }
    return sum;
  }

  uint64_t prove_box(const TrainedParam& param, size_t index, const ComparedBox& compared,
                     Buffers& buffers) {
    const auto passed = passed_ ? passed_->proven_box(index_in_state(param), index) : std::nullopt;
    if (passed) {
      advance(ckpt::element_count(compared.box.sizes));
      return *passed;
    }
    const auto weight = alone(*param.weight, compared.box, compared.weights);
    const auto master = alone(*param.master, compared.box, compared.masters);
    return prove_tensors(param, {weight, master}, buffers);
  }

  // A box as a tensor of its own.
  static TensorEntry alone(const TensorEntry& tensor, const Box& box,
                           const std::vector<RunOfBox>& runs) {
    TensorEntry part{tensor.file, tensor.key, tensor.dtype, box.sizes, {}};
    part.cast = tensor.cast;
    for (const RunOfBox& run : runs) {
      Extents& offsets = part.chunks.emplace_back(*run.chunk).box.offsets;
      for (size_t d = 0; d < offsets.size(); ++d) offsets[d] -= box.offsets[d];
    }
    return part;
  }

  struct Tensors {
    const TensorEntry &weight, &master;
  };
  uint64_t prove_tensors(const TrainedParam& param, const Tensors& tensors, Buffers& buffers) {
    const TensorEntry& weight = tensors.weight;
    const bool is_copied = is_own_master(weight.dtype);
    if (!is_copied && weight.dtype != DType::BFloat16 && weight.dtype != DType::Float16) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                  "a model weight of type " + std::string(ckpt::name(weight.dtype)) +
                      " cannot be identified by its master");
    }
    const size_t words = is_copied ? 2 : 1;  // of 16 bits in an element
    ckpt::TensorStream masters(tensors.master, payloads_), weights(weight, payloads_);
    uint64_t sum = 0, first = 0;
    while (weights.left_bytes() > 0) {
      if (options_.stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
      const size_t left = weights.left_bytes() / sizeof(uint16_t) / words;
      const size_t count = std::min(kProvenPieceElements, left);
      const std::span<float> rounded = std::span(buffers.masters).first(count);
      const std::span<uint16_t> expected = std::span(buffers.weights).first(count * words);
      masters.read(std::as_writable_bytes(rounded));
      weights.read(std::as_writable_bytes(expected));
      if (!round_to(weight.dtype, rounded, expected)) refuse_master(source_, param);
      sum += sum_of_weights(std::as_bytes(expected), first, weight.dtype);
      first += count;
      advance(count);
    }
    return sum;
  }

  static bool round_to(DType dtype, std::span<const float> masters,
                       std::span<const uint16_t> weights) {
    if (is_own_master(dtype)) {
      return std::memcmp(masters.data(), weights.data(), weights.size_bytes()) == 0;
    }
    size_t i = 0;
    if (dtype == DType::BFloat16) {
      for (; i + kBlockElements <= masters.size(); i += kBlockElements) {
        if (!block_rounds_to_bfloat16(&masters[i], &weights[i])) return false;
      }
    }
    const auto rounds_to = dtype == DType::BFloat16 ? rounds_to_bfloat16 : rounds_to_float16;
    for (; i < masters.size(); ++i) {
      if (!rounds_to(masters[i], weights[i])) return false;
    }
    return true;
  }

  // Parameters that some other one equals, in the order of the model.
  std::vector<AmbiguousParam> ambiguous() const {
    if (!are_names_computed(state_)) return {};
    std::map<std::pair<std::vector<int64_t>, uint64_t>, std::vector<size_t>> alike;
    for (size_t i = 0; i < fingerprints_.size(); ++i) {
      alike[{params_[i]->info.shape, fingerprints_[i]}].push_back(i);
    }
    std::vector<AmbiguousParam> result;
    for (size_t i = 0; i < fingerprints_.size(); ++i) {
      const std::vector<size_t>& all = alike.at({params_[i]->info.shape, fingerprints_[i]});
      if (all.size() < 2) continue;
      AmbiguousParam& param = result.emplace_back();
      param.name = params_[i]->info.name;
      param.also_fits_count = all.size() - 1;
      for (const size_t other : all) {
        if (param.also_fits.size() == kAlsoFitsMax) break;
        if (other != i) param.also_fits.push_back(params_[other]->info.name);
      }
    }
    return result;
  }

  const FiledState& state_;
  const ckpt::Checkpoint& source_;
  const ckpt::PayloadSource& payloads_;
  const PassingProof* passed_;  // may be null
  const ProofOptions& options_;
  std::vector<const TrainedParam*> params_;
  std::vector<uint64_t> fingerprints_;  // by parameter
  std::mutex mutex_;                    // guards progress_
  ckpt::Progress progress_{.step = "proving"};
};

}  // namespace

bool are_names_computed(const FiledState& state) {
  const Filing* const filing = state.filed.only();
  return state.filed.container == ckpt::Format::Torch || (filing != nullptr && filing->in_order);
}

// Damage is told from a wrong name by the archives' checksums.
void refuse_master(const ckpt::Checkpoint& source, const TrainedParam& param) {
  TensorEntry master = *param.master;
  // What a repair has put in is in no file.
  std::erase_if(master.chunks, [&](const Chunk& chunk) {
    return chunk.region.file >= source.catalog().files.size();
  });
  source.check_crc(master);
  source.check_crc(*param.weight);
  const ckpt::StorageRegion& region =
      (master.chunks.empty() ? param.weight : param.master)->chunks.at(0).region;
  throw Error(
      ErrorCode::Corrupt, {source.file_name(region.file), region.bytes.offset_bytes, master.key},
      "the master does not round to the model's weight '" + ckpt::escaped(param.info.name) + "'",
      "the optimizer state may belong to another parameter, iteration or run");
}

std::vector<AmbiguousParam> prove_rest(const FiledState& state, const ckpt::Checkpoint& source,
                                       const ProofOptions& options, const PassingProof* passed) {
  const unsigned threads = std::min(ckpt::thread_count(options.threads), kThreadsMax);
  return Proof(state, source, options, passed).run(threads);
}

std::vector<AmbiguousParam> prove_assignment(const FiledState& checkpoint,
                                             const ckpt::Checkpoint& source,
                                             const ProofOptions& options) {
  return prove_rest(checkpoint, source, options, nullptr);
}

}  // namespace optim
