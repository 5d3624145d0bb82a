// Lays a buffer out again without each parameter that does not fit.
#include "layouts/frozen_in_buffers.h"

#include <algorithm>
#include <span>
#include <vector>

#include <ckpt/flat_range.h>
#include <ckpt/tensor_stream.h>

#include "grid/flat_buffers.h"
#include "grid/layer_wise_view.h"
#include "grid/placement.h"
#include "grid/rank_files.h"
#include "layouts/filings/flat_buckets.h"
#include "layouts/layouts.h"
#include "layouts/parts/flat_states.h"
#include "model/tensor_names.h"
#include "state/rounding.h"

namespace optim {
namespace {

using ckpt::DType;
using ckpt::TensorEntry;

constexpr uint64_t kComparedMax = 4096;  // elements of a parameter

class Search {
 public:
  Search(const OpenedTraining& source, const Filing& filing)
      : source_(source),
        filing_(filing),
        view_(name_layer_wise(source, {.model_only = true})),
        placement_(view_, view_.grid),
        groups_(group_params(view_.args(), view_.grid.sizes, view_.params)),
        arguments_(flat_arguments(view_.args(), "args")),
        buffers_(view_, placement_, groups_, arguments_) {
    if (&filing == &kBuckets) buckets_.emplace(source.catalog());
  }

  std::set<std::string> run() {
    chain_ = groups_.empty() ? 0 : groups_.back().optimizer_index + 1;
    for (const WorldRank& rank : ranks_of(view_.grid)) {
      for (uint32_t optimizer = 0; optimizer < chain_; ++optimizer) {
        const bool is_first = buffers_.writes(optimizer, rank.at);
        if (is_first) look_into(rank, optimizer);
      }
    }
    std::set<std::string> names;
    for (const uint32_t param : frozen_) names.insert(view_.params[param].info.name);
    return names;
  }

 private:
  // A parameter's place in what is stored.
  struct Place {
    const WorldRank& rank;
    uint32_t optimizer;
    size_t buffer;  // number of it
    size_t held;    // number in it
  };

  // What fits keeps its place when a parameter behind it in the buffer is left out.
  void look_into(const WorldRank& rank, uint32_t optimizer) {
    std::set<uint32_t> fitting;
    while (true) {
      const std::vector<FlatBuffer> laid_out = buffers_.of(optimizer, rank.at, frozen_);
      const auto unfit = first_unfit({rank, optimizer, 0, 0}, laid_out, fitting);
      if (!unfit) return;
      frozen_.insert(*unfit);
    }
  }

  std::optional<uint32_t> first_unfit(Place place, const std::vector<FlatBuffer>& laid_out,
                                      std::set<uint32_t>& fitting) const {
    for (place.buffer = 0; place.buffer < laid_out.size(); ++place.buffer) {
      const FlatBuffer& buffer = laid_out[place.buffer];
      for (place.held = buffer.held.size(); place.held-- > 0;) {
        const uint32_t param = view_.model[buffer.held[place.held].entry].param;
        if (fitting.contains(param)) continue;
        if (!fits(place, buffer, param)) return param;
        fitting.insert(param);
      }
    }
    return std::nullopt;
  }

  bool fits(const Place& place, const FlatBuffer& buffer, uint32_t param) const {
    const TensorEntry& weight = *view_.params[param].weight;
    const uint32_t tensor_rank = placement_.tensor_rank(param, place.rank.at);
    const ckpt::Box box = placement_.boxes(param, tensor_rank).front();
    const uint64_t count = std::min(kComparedMax, ckpt::element_count(box.sizes));
    const auto masters = masters_at(place, buffer, count);
    if (!masters) return false;
    std::vector<uint16_t> weights(count);
    auto out = std::as_writable_bytes(std::span(weights));
    for (const ckpt::Box& part : ckpt::boxes_of_flat_range(box, 0, count)) {
      const uint64_t bytes = ckpt::element_count(part.sizes) * sizeof(uint16_t);
      source_.read(weight, part, out.first(bytes));
      out = out.subspan(bytes);
    }
    const auto rounds_to = weight.dtype == DType::Float16 ? rounds_to_float16 : rounds_to_bfloat16;
    return std::ranges::equal(*masters, weights, rounds_to);
  }

  // nullopt where the buffer ends before.
  std::optional<std::vector<float>> masters_at(const Place& place, const FlatBuffer& buffer,
                                               uint64_t count) const {
    const FlatPlace& own = buffer.layout.places[place.held];
    const bool is_file = &filing_ == &kFlatFile;
    const auto stored = is_file ? in_file(place) : in_buckets(place, own.bucket);
    const uint64_t begin = is_file
                               ? buffer.layout.compact_begin(place.held)
                               : own.range.begin - buffer.layout.buckets[own.bucket].range.begin;
    if (!stored || stored->entry().dtype != DType::Float32) return std::nullopt;
    if (begin > stored->element_count() || count > stored->element_count() - begin) {
      return std::nullopt;
    }
    std::vector<float> masters(count);
    ckpt::TensorStream(stored->slice(begin, {count}), source_)
        .read(std::as_writable_bytes(std::span(masters)));
    return masters;
  }

  std::optional<FlatTensor> in_file(const Place& place) const {
    const std::string file = place.rank.flat_file();
    const std::string prefix =
        (chain_ > 1 ? "/" + std::to_string(place.optimizer) : std::string()) + "/" +
        std::to_string(place.buffer) + "/";
    for (const TensorEntry& tensor : source_.catalog().tensors) {
      const bool is_meant = tensor.file == file && tensor.key.starts_with(prefix) &&
                            tensor.key.ends_with("/" + std::string(kDistributedMaster));
      if (is_meant) return FlatTensor(tensor);
    }
    return std::nullopt;
  }

  std::optional<FlatTensor> in_buckets(const Place& place, uint32_t bucket) const {
    const RankCoordinates& at = place.rank.at;
    const uint32_t number = buffers_.copy_number(place.optimizer, at);
    const auto copy = buckets_->copies().find({place.optimizer, number});
    if (copy == buckets_->copies().end()) return std::nullopt;
    const auto found = copy->second.buckets.find({static_cast<uint32_t>(place.buffer), bucket});
    if (found == copy->second.buckets.end()) return std::nullopt;
    const auto master = found->second.tensors.find(std::string(kDistributedMaster));
    return master == found->second.tensors.end() ? std::nullopt : std::optional(master->second);
  }

  const OpenedTraining& source_;
  const Filing& filing_;
  TrainingState view_;
  Placement placement_;
  std::vector<ParamGroup> groups_;
  FlatArguments arguments_;
  FlatBuffers buffers_;
  std::optional<FlatBuckets> buckets_;
  size_t chain_ = 0;
  std::set<uint32_t> frozen_;
};

bool are_of_16_bits(const TrainingState& view) {
  return std::ranges::all_of(view.params, [](const TrainedParam& param) {
    return param.weight->dtype == DType::BFloat16 || param.weight->dtype == DType::Float16;
  });
}

}  // namespace

bool has_flat_buffers(const OpenedTraining& checkpoint) {
  return std::ranges::any_of(checkpoint.catalog().tensors, [](const TensorEntry& tensor) {
    return is_flat_buffer(tensor) || is_coalesced_buffer(tensor);
  });
}

std::optional<std::set<std::string>> find_frozen_in_buffers(const OpenedTraining& checkpoint) {
  const auto stated = stated_filing(checkpoint);
  const bool is_flat = stated && stated->filing->in_order && stated->filing->is_written;
  if (!is_flat || !are_of_16_bits(name_layer_wise(checkpoint, {.model_only = true}))) {
    return std::nullopt;
  }
  std::set<std::string> frozen = Search(checkpoint, *stated->filing).run();
  return frozen.empty() ? std::nullopt : std::optional(std::move(frozen));
}

}  // namespace optim
