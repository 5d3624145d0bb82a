#include "verify/bucket_shift.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/flat_range.h>

#include "grid/flat_buffers.h"
#include "grid/layer_wise_view.h"
#include "state/remainders.h"
#include "state/rounding.h"

namespace optim {
namespace {

constexpr uint64_t kPieceElements = uint64_t{1} << 16;

// The buffers of one place of the model: a stage, a tensor parallel rank, of experts their rank.
struct ModelPlace {
  uint32_t optimizer = 0;
  RankCoordinates at;
  uint32_t tensor_rank = 0;
};

// A parameter of a buffer, as a rank has it.
struct LocalParam {
  uint32_t param = 0;
  FlatPlace place;
  uint64_t shift = 0;
  bool is_stored = false;  // this rank's copy is the one in the files
  uint64_t element_count() const { return place.range.end - place.range.begin; }
};

class ShiftSearch {
 public:
  ShiftSearch(const TrainingState& state, const ckpt::Checkpoint* source)
      : state_(state),
        source_(source),
        placement_(state, state.grid),
        params_(state.params),
        groups_(group_params(state.args(), state.grid.sizes.expert_parallel, params_)),
        arguments_(flat_arguments(state.args(), "args")),
        buffers_(state, placement_, groups_, arguments_) {}

  // False where a parameter's split is not known.
  bool run() {
    for (const ModelPlace& place : places()) {
      for (const FlatBuffer& buffer : buffers_.of(place.optimizer, place.at)) {
        const std::vector<LocalParam> params = local_params(buffer, place);
        for (const LocalParam& param : params) {
          if (param.shift == 0 || !param.is_stored) continue;
          if (!note(param)) return false;
          if (source_ != nullptr) restore(param, {params, place, buffer.layout.unpadded_count()});
        }
      }
    }
    return true;
  }

  std::optional<BucketShift> result() {
    if (displaced_.empty()) return std::nullopt;
    found_.param = state_.params[*displaced_.begin()].info.name;
    found_.param_count = displaced_.size();
    return found_;
  }

 private:
  struct Stored {
    std::span<const LocalParam> params;
    const ModelPlace& place;
    uint64_t end = 0;  // of what the buffer's state was
  };

  std::vector<ModelPlace> places() const {
    const ParallelSizes& sizes = state_.grid.sizes;
    std::vector<ModelPlace> all;
    for (uint32_t optimizer = 0; optimizer < state_.chain.size(); ++optimizer) {
      const bool has_experts = buffers_.has_experts(optimizer);
      const uint32_t expert_ranks = has_experts ? sizes.expert_parallel : 1;
      for (uint32_t stage = 0; stage < sizes.pipeline_parallel; ++stage) {
        for (uint32_t expert = 0; expert < expert_ranks; ++expert) {
          for (uint32_t rank = 0; rank < tensor_ranks(sizes, has_experts); ++rank) {
            RankCoordinates at;
            at.pp = stage;
            at.ep = expert;
            at.tp = at.etp = rank;
            all.push_back({optimizer, at, rank});
          }
        }
      }
    }
    return all;
  }

  // In the order of the buffer's places.
  std::vector<LocalParam> local_params(const FlatBuffer& buffer, const ModelPlace& place) const {
    std::vector<LocalParam> params;
    for (size_t i = 0; i < buffer.held.size(); ++i) {
      const HeldEntry& held = buffer.held[i];
      const uint32_t param = state_.model[held.entry].param;
      const FlatPlace& at = buffer.layout.places[i];
      const FlatBucket& bucket = buffer.layout.buckets[at.bucket];
      const bool is_replica = placement_.tensor_ranks(param) == 1 && place.tensor_rank != 0;
      params.push_back({param, at, bucket.range.begin - bucket.compact_begin,
                        placement_.is_first_copy(held, place.at.pp) && !is_replica});
    }
    std::ranges::sort(params, {}, [](const LocalParam& one) { return one.place.range.begin; });
    return params;
  }

  bool note(const LocalParam& param) {
    const TrainedParam& of = state_.params[param.param];
    if (!of.sharing.is_known || !of.master) return false;
    // Sections of columns do not lie one behind the other in a rank's tensor.
    const auto& split = of.sharing.split;
    const bool is_in_rows = !split || split->dim == 0 || split->sections.size() == 1;
    if (!is_in_rows) return false;
    const bool is_first = displaced_.empty();
    displaced_.insert(param.param);
    found_.least = is_first ? param.shift : std::min(found_.least, param.shift);
    found_.most = std::max(found_.most, param.shift);
    found_.element_count += param.element_count();
    return true;
  }

  // Its own values lie before what is stored of it: in what is stored of others, or nowhere.
  void restore(const LocalParam& param, const Stored& stored) {
    const uint64_t begin = param.place.range.begin - param.shift;
    const uint64_t end = begin + param.element_count();
    for (const LocalParam& other : stored.params) {
      const uint64_t first = std::max(begin, other.place.range.begin);
      const uint64_t last = std::min({end, other.place.range.end, stored.end});
      if (!other.is_stored || first >= last) continue;
      for (uint64_t at = first; at < last; at += kPieceElements) {
        const uint64_t count = std::min(kPieceElements, last - at);
        compare({other.param, at - other.place.range.begin, count},
                {param.param, at - begin, count}, stored.place.tensor_rank);
      }
    }
  }

  struct Elements {
    uint32_t param;
    uint64_t first, count;  // of a rank's tensor, flattened
  };

  void compare(const Elements& masters_at, const Elements& weights_at, uint32_t tensor_rank) {
    masters_.resize(masters_at.count);
    weights_.resize(weights_at.count);
    const TensorRef& weight = state_.params[weights_at.param].weight;
    read(*state_.params[masters_at.param].master, masters_at, tensor_rank,
         std::as_writable_bytes(std::span(masters_)));
    read(*weight, weights_at, tensor_rank, std::as_writable_bytes(std::span(weights_)));
    const auto rounds_to =
        weight->dtype == ckpt::DType::Float16 ? rounds_to_float16 : rounds_to_bfloat16;
    found_.found_count += masters_.size();
    for (size_t i = 0; i < masters_.size(); ++i) {
      found_.matching_count += rounds_to(masters_[i], weights_[i]) ? 1 : 0;
    }
  }

  void read(const ckpt::TensorEntry& tensor, const Elements& elements, uint32_t tensor_rank,
            std::span<std::byte> out) const {
    uint64_t skipped = elements.first, left = elements.count;
    for (const ckpt::Box& box : placement_.boxes(elements.param, tensor_rank)) {
      const uint64_t size = ckpt::element_count(box.sizes);
      if (skipped >= size) {
        skipped -= size;
        continue;
      }
      const uint64_t count = std::min(left, size - skipped);
      for (const ckpt::Box& part : ckpt::boxes_of_flat_range(box, skipped, count)) {
        const uint64_t bytes =
            ckpt::element_count(part.sizes) * ckpt::bytes_per_element(tensor.dtype);
        source_->read(tensor, part, out.first(bytes));
        out = out.subspan(bytes);
      }
      skipped = 0;
      left -= count;
      if (left == 0) return;
    }
  }

  const TrainingState& state_;
  const ckpt::Checkpoint* source_;  // null: nothing is read
  Placement placement_;
  std::vector<TrainedParam> params_;
  std::vector<ParamGroup> groups_;
  FlatArguments arguments_;
  FlatBuffers buffers_;
  std::set<uint32_t> displaced_;
  BucketShift found_;
  std::vector<float> masters_;
  std::vector<uint16_t> weights_;
};

}  // namespace

std::string first_displaced(const TrainingState& state) {
  ShiftSearch search(state, nullptr);
  const bool is_known = search.run();
  const auto found = search.result();
  return is_known && found ? found->param : std::string();
}

std::optional<BucketShift> find_bucket_shift(const TrainingState& state,
                                             const ckpt::Checkpoint& source) {
  if (has_remainders(state)) return std::nullopt;  // which show no place
  ShiftSearch search(state, &source);
  return search.run() ? search.result() : std::nullopt;
}

}  // namespace optim
