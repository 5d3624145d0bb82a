// Lays a buffer out again without each parameter that does not fit.
#include "layouts/layouts.h"

#include <algorithm>
#include <span>
#include <vector>

#include <ckpt/flat_range.h>
#include <ckpt/tensor_stream.h>

#include "grid/build_state.h"
#include "grid/flat_buffers.h"
#include "grid/placement.h"
#include "grid/rank_files.h"
#include "layouts/filings/flat_buckets.h"
#include "layouts/parts/flat_states.h"
#include "model/megatron_keys.h"
#include "model/tensor_names.h"
#include "state/remainders.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr uint64_t kComparedMax = 4096;  // elements of a parameter

class Search {
 public:
  Search(const OpenedTraining& source, const Filing& filing)
      : source_(source),
        filing_(filing),
        state_(read_training_state(source, {.model_only = true})),
        placement_(state_, state_.grid),
        groups_(group_params(state_.args(), state_.grid.sizes, state_.params)),
        arguments_(flat_arguments(state_.args(), "args")),
        buffers_(state_, placement_, groups_, arguments_) {
    if (&filing == &kBuckets) buckets_.emplace(source.catalog());
  }

  std::set<std::string> run() {
    chain_ = groups_.empty() ? 0 : groups_.back().optimizer_index + 1;
    for_each_writer(
        [this](const WorldRank& rank, uint32_t optimizer) { look_into(rank, optimizer); });
    for_each_writer([this](const WorldRank& rank, uint32_t optimizer) {
      require_one_reading(rank, optimizer);
    });
    if (buckets_) add_without_master();
    std::set<std::string> names;
    for (const uint32_t param : frozen_) names.insert(state_.params[param].info.name);
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

  // Beside Muon only Adam's half is.
  bool is_in_buffers(uint32_t optimizer) const {
    return !buckets_ || buckets_->optimizers().contains(optimizer);
  }

  // Of the other half keys name what has a master.
  void add_without_master() {
    std::set<std::string> masters;
    for (const TensorEntry& tensor : source_.catalog().tensors) {
      if (auto name = master_of(tensor.key)) masters.insert(std::move(*name));
    }
    for (const ParamGroup& group : groups_) {
      if (is_in_buffers(group.optimizer_index)) continue;
      for (const GroupedParam& param : group.params) {
        const std::string& name = state_.params[param.index].info.name;
        const bool has_master = masters.contains(sharded_name(name, key_rules(state_)).key);
        if (!has_master) frozen_.insert(static_cast<uint32_t>(param.index));
      }
    }
  }

  template <class Look>
  void for_each_writer(const Look& look) const {
    for (const WorldRank& rank : ranks_of(state_.grid)) {
      for (uint32_t optimizer = 0; optimizer < chain_; ++optimizer) {
        if (is_in_buffers(optimizer) && buffers_.writes(optimizer, rank.at)) look(rank, optimizer);
      }
    }
  }

  // Beside a parameter with the same weights either could be the frozen one. Any other reading of a
  // buffer differs from this one in such a pair, too.
  void require_one_reading(const WorldRank& rank, uint32_t optimizer) const {
    for (const FlatBuffer& all : buffers_.of(optimizer, rank.at)) {
      std::optional<uint32_t> owner;  // the last that is not frozen
      std::vector<uint32_t> frozen;   // behind it
      for (const HeldEntry& held : all.held) {
        const uint32_t param = state_.model[held.entry].param;
        if (frozen_.contains(param)) {
          if (owner) require_others({param, *owner}, rank);
          frozen.push_back(param);
          continue;
        }
        for (const uint32_t before : frozen) require_others({before, param}, rank);
        frozen.clear();
        owner = param;
      }
    }
  }

  void require_others(std::pair<uint32_t, uint32_t> params, const WorldRank& rank) const {
    const auto [frozen, owner] = params;
    if (placement_.shape_on_rank(frozen) != placement_.shape_on_rank(owner)) return;
    if (beginning(frozen, rank) != beginning(owner, rank)) return;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = state_.params[frozen].info.name},
                "is frozen, or '" + ckpt::escaped(state_.params[owner].info.name) +
                    "' is: they have the same weights, so that flat buffers do not tell",
                "--model-only carries all weights, without the optimizer's state");
  }

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
        const uint32_t param = state_.model[buffer.held[place.held].entry].param;
        if (fitting.contains(param)) continue;
        if (!fits(place, buffer, param)) return param;
        fitting.insert(param);
      }
    }
    return std::nullopt;
  }

  bool fits(const Place& place, const FlatBuffer& buffer, uint32_t param) const {
    const std::vector<uint16_t> weights = beginning(param, place.rank);
    const auto masters = masters_at(place, buffer, weights.size());
    if (!masters) return false;
    const bool is_half = state_.params[param].weight->dtype == DType::Float16;
    return std::ranges::equal(*masters, weights, is_half ? rounds_to_float16 : rounds_to_bfloat16);
  }

  // Of a parameter's weights on a rank.
  std::vector<uint16_t> beginning(uint32_t param, const WorldRank& rank) const {
    const TensorEntry& weight = *state_.params[param].weight;
    const uint32_t tensor_rank = placement_.tensor_rank(param, rank.at);
    const Box box = placement_.boxes(param, tensor_rank).front();
    const uint64_t count = std::min(kComparedMax, ckpt::element_count(box.sizes));
    std::vector<uint16_t> weights(count);
    auto out = std::as_writable_bytes(std::span(weights));
    for (const Box& part : ckpt::boxes_of_flat_range(box, 0, count)) {
      const uint64_t bytes = ckpt::element_count(part.sizes) * sizeof(uint16_t);
      source_.read(weight, part, out.first(bytes));
      out = out.subspan(bytes);
    }
    return weights;
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
  TrainingState state_;
  Placement placement_;
  std::vector<ParamGroup> groups_;
  FlatArguments arguments_;
  FlatBuffers buffers_;
  std::optional<FlatBuckets> buckets_;
  size_t chain_ = 0;
  std::set<uint32_t> frozen_;
};

bool are_of_16_bits(const TrainingState& state) {
  return std::ranges::all_of(state.params, [](const TrainedParam& param) {
    return param.weight->dtype == DType::BFloat16 || param.weight->dtype == DType::Float16;
  });
}

}  // namespace

std::optional<std::set<std::string>> find_frozen_in_buffers(const OpenedTraining& checkpoint) {
  const auto stated = stated_filing(checkpoint);
  if (!stated) return std::nullopt;
  const bool is_half = stated->filing == &kDealt &&
                       checkpoint.catalog().format == ckpt::Format::TorchDist &&
                       std::ranges::any_of(checkpoint.catalog().tensors, is_flat_buffer);
  const Filing& filing = is_half ? kBuckets : *stated->filing;
  if (!filing.in_order || !filing.is_written ||
      !are_of_16_bits(read_training_state(checkpoint, {.model_only = true}))) {
    return std::nullopt;
  }
  std::set<std::string> frozen = Search(checkpoint, filing).run();
  return frozen.empty() ? std::nullopt : std::optional(std::move(frozen));
}

}  // namespace optim
