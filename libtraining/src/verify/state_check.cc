#include "verify/state_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <ckpt/files_beside.h>
#include <ckpt/tensor_stream.h>

#include "args/bridge_args.h"
#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/placement.h"
#include "layouts/parts/tensor_parts.h"
#include "model/tensor_names.h"
#include "state/read_range.h"
#include "state/remainders.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {
namespace {

constexpr const char* kWithoutMaster = "no fp32 master; frozen parameters have none";

bool is_half(DType dtype) { return dtype == DType::BFloat16 || dtype == DType::Float16; }

// nullptr where rounded master, or of a float32 weight its copy, and weight must be equal, place by
// place.
const char* why_not_compared(const TensorEntry& master, const TensorEntry& weight) {
  if (master.shape != weight.shape) {
    const bool is_flat = ckpt::element_count(master.shape) == ckpt::element_count(weight.shape);
    return is_flat ? "stored flattened, as by Megatron-Core up to 0.14"
                   : "not of their weights' shape";
  }
  if (master.dtype != DType::Float32) return "not float32: remainders or scaled values";
  const bool is_compared = is_half(weight.dtype) || is_own_master(weight.dtype);
  return is_compared ? nullptr : "their weights are neither 16-bit nor float32";
}

std::pair<uint32_t, uint64_t> region_of(const Chunk& chunk) {
  return {chunk.region.file, chunk.region.bytes.offset_bytes};
}

// A master, or a buffer of masters, without the name of its parameter.
bool is_unnamed_master(const TensorEntry& tensor) {
  return is_numbered_master(tensor) || is_coalesced_buffer(tensor);
}

// Settings of Megatron-LM (args) and of Megatron Bridge (run_config.yaml).
constexpr std::pair<std::string_view, std::string_view> kSettings[] = {
    {"fp8_param_gather", "weights are kept in fp8, so they differ from the rounded masters"},
    {"fp8_param", "weights are kept in fp8, so they differ from the rounded masters"},
    {"fp4_param_gather", "weights are kept in fp4, so they differ from the rounded masters"},
    {"fp4_param", "weights are kept in fp4, so they differ from the rounded masters"},
    {"use_precision_aware_optimizer",
     "the optimizer stores its masters as remainders or scaled values"},
};

constexpr const char* kMayBeAnothers =
    "a DistributedOptimizer with float32 parameters among others may file one's state as another's";

bool has_masters_of_float32(const ckpt::Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [&](const TensorEntry& tensor) {
    const auto name = master_of(tensor.key);
    const TensorEntry* const weight = name ? catalog.find_tensor(*name) : nullptr;
    return weight != nullptr && is_own_master(weight->dtype);
  });
}

// A line "  NAME: true" of a YAML file.
bool has_true(std::string_view yaml, std::string_view name) {
  while (!yaml.empty()) {
    std::string_view line = yaml.substr(0, yaml.find('\n'));
    yaml.remove_prefix(std::min(line.size() + 1, yaml.size()));
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    if (line.starts_with(": true")) return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> why_weights_may_differ(const OpenedTraining& checkpoint) {
  const RunArgs& args = checkpoint.args();
  const std::string config = ckpt::text_beside(checkpoint, kBridgeConfig);
  for (const auto& [name, reason] : kSettings) {
    if (args.is_true(name) || has_true(config, name)) {
      return std::string(reason) + " (" + std::string(name) + ")";
    }
  }
  return std::nullopt;
}

StateCheck::StateCheck(const OpenedTraining& checkpoint, const VerifyOptions& options,
                       VerifyReport& report)
    : checkpoint_(checkpoint),
      report_(report),
      // A quick look reads none, but globs may name tensors that are in objects.
      in_objects_(!options.quick || !options.allow_nonfinite.empty()
                      ? tensors_in_objects(checkpoint)
                      : ObjectTensors()),
      nonfinite_(checkpoint, options.allow_nonfinite, in_objects_.tensors, report),
      other_rounding_(why_weights_may_differ(checkpoint)) {
  name_parameters();
  note_own_masters();
  note_flat_state();
  note_remainders();
  add_states();
  add_pairs();
  list_others();
  for (const TensorEntry& tensor : in_objects_.tensors) list(tensor, {});
  watch_.put_in_order();
}

void StateCheck::name_parameters() {
  if (!has_training_state(checkpoint_)) return check_rank_folders(checkpoint_, report_);
  try {
    state_ = read_training_state(checkpoint_);
    for (const std::string& name : state_->maybe_equal_args) {
      report_.not_proven.push_back({"args." + name, kMaybeOneMember});
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::IoFailure) throw;
    if (error.code() == ErrorCode::Unsupported) {
      report_.not_checked.push_back({kOwners, error.what()});
      if (has_masters_of_float32(checkpoint_.catalog())) other_rounding_ = kMayBeAnothers;
      check_rank_folders(checkpoint_, report_);
    } else {
      report_.find(error.where(), error.problem(), error.hint());
    }
  }
}

// Float32 weights that a DistributedOptimizer has stored once more, as masters: who reads the state
// has compared both.
void StateCheck::note_own_masters() {
  if (!state_) return;
  for (const TrainedParam& param : state_->params) {
    if (param.weight->chunks.empty()) continue;
    if (is_own_master(param) && state_->filed.optimizers[param.optimizer]->by_elements) {
      own_masters_.push_back(param.weight.get());
    }
  }
}

// Buffers whose ranges the state gives names: what lies between these is not looked at.
void StateCheck::note_flat_state() {
  if (!state_) return;
  const bool is_in_objects = state_->filed.only() == &kGathered;
  for (const TensorEntry& tensor : checkpoint_.catalog().tensors) {
    if (!is_flat_buffer(tensor) && !is_coalesced_buffer(tensor)) continue;
    for (const Chunk& chunk : tensor.chunks) flat_regions_.insert(region_of(chunk));
  }
  const auto is_flat = [&](const TensorRef& stored) {
    if (!stored || stored->chunks.empty()) return false;
    return is_in_objects || flat_regions_.contains(region_of(stored->chunks[0]));
  };
  for (const TrainedParam& param : state_->params) {
    const bool has_flat =
        is_flat(param.master) || std::ranges::any_of(param.states, is_flat, &StateTensor::value);
    if (has_flat) flat_params_.push_back(&param);
  }
}

void StateCheck::note_remainders() {
  if (!state_) return;
  for (const TrainedParam& param : state_->params) {
    const StateTensor* const remainder = remainder_of(param);
    if (remainder == nullptr) continue;
    with_remainder_.add(param.info.name, kWhyRemaindersProveNothing);
    for (const Chunk& chunk : remainder->value->chunks) {
      remainder_regions_.insert(region_of(chunk));
    }
  }
}

// Also of several layers at once, as they are stored; not of a buffer of several states.
bool StateCheck::is_remainder(const TensorEntry& tensor) const {
  const bool is_named = tensor.key.starts_with(state_key(kRemainderState, ""));
  if (is_named || tensor.chunks.empty()) return is_named;
  return master_of(tensor.key) && remainder_regions_.contains(region_of(tensor.chunks[0]));
}

void StateCheck::add_states() {
  uint64_t other_count = 0;
  for (const TensorEntry& tensor : checkpoint_.catalog().tensors) {
    const bool is_named_buffer =
        !flat_params_.empty() && (is_flat_buffer(tensor) || is_coalesced_buffer(tensor));
    if (!is_state(tensor) || is_named_buffer || add_state(tensor)) continue;
    const bool is_listed = is_scanned(tensor.dtype) && !repeats_much(tensor);
    is_listed ? list(tensor, {}) : void(++other_count);
  }
  for (const TrainedParam* const param : flat_params_) {
    if (param->master && !add_state(*param->master)) ++other_count;
    for (const StateTensor& state : param->states) {
      if (!add_state(*state.value)) ++other_count;
    }
  }
  add_not_looked_at(other_count);
}

// False where a chunk of it cannot be looked at while it passes by.
bool StateCheck::add_state(const TensorEntry& tensor) {
  bool is_watched = true;
  const size_t before = scanned_.size();
  Wanted wanted = is_second_moment(tensor) ? Wanted::FiniteAndNotNegative : Wanted::Finite;
  if (is_remainder(tensor)) wanted = Wanted::Remainder;
  if (wanted == Wanted::Remainder && tensor.dtype == DType::Int16) return true;  // all are allowed
  for (const Chunk& chunk : tensor.chunks) {
    const auto number = watch_.add(chunk, tensor.dtype, wanted);
    if (number) scanned_.push_back({&tensor, &chunk, number, true});
    is_watched = is_watched && number;
  }
  if (!is_watched)
    scanned_.erase(scanned_.begin() + static_cast<ptrdiff_t>(before), scanned_.end());
  return is_watched;
}

void StateCheck::add_not_looked_at(uint64_t other_count) {
  const ckpt::Catalog& catalog = checkpoint_.catalog();
  const auto flat_count = static_cast<uint64_t>(
      flat_params_.empty() ? std::ranges::count_if(catalog.tensors, is_flat_buffer) : 0);
  const auto object_count = static_cast<uint64_t>(
      flat_params_.empty() ? std::ranges::count_if(catalog.objects, is_state_object) : 0);
  if (flat_count != 0) {
    report_.not_checked.push_back(
        {counted(flat_count, "flat buffer") + " of a DistributedOptimizer",
         "they do not name parameters, and their gaps may hold uninitialised memory"});
  }
  if (object_count != 0) {
    report_.not_checked.push_back(
        {counted(object_count, "object") + " with buffers of a DistributedOptimizer",
         "they do not name parameters"});
  }
  if (other_count != 0) {
    report_.not_checked.push_back({counted(other_count, "tensor") + " of optimizer state",
                                   "not a type of floating point, or not a run of bytes"});
  }
}

// No state is in buffers of torch_dist that name no parameters.
bool StateCheck::are_all_named() const {
  if (!flat_params_.empty()) return true;
  return std::ranges::none_of(checkpoint_.catalog().tensors, is_flat_buffer) &&
         std::ranges::none_of(checkpoint_.catalog().objects, is_state_object);
}

void StateCheck::add_pairs() {
  if (checkpoint_.catalog().format == ckpt::Format::Torch) {
    add_pairs_of_state();
  } else {
    add_named_pairs();
  }
  not_compared_.put_into(report_.not_checked);
  without_master_.put_into(report_.not_proven);
  with_remainder_.put_into(report_.not_proven);
  add_not_checked();
}

// Of `torch` files, which hold no names: as far as the deal gives them.
void StateCheck::add_pairs_of_state() {
  if (!state_) return;
  for (const TrainedParam& param : state_->params) {
    const bool is_own_master = param.weight->cast != nullptr;  // Megatron-FSDP's
    if (param.master && !is_own_master) add_pair(*param.master, *param.weight);
  }
  list_frozen();
}

void StateCheck::list_frozen() {
  for (const TrainedParam& param : state_->params) {
    if (is_frozen(*state_, param)) without_master_.add(param.info.name, kWithoutMaster);
  }
}

// Tensors of torch_dist, which are global; where state is flattened, as the training state has
// them.
void StateCheck::add_named_pairs() {
  const bool only_state_names =
      state_ && (state_->filed.only() == &kRanges || state_->filed.is_fully_sharded);
  if (only_state_names) return add_pairs_of_state();
  const ckpt::Catalog& catalog = checkpoint_.catalog();
  std::set<std::string> with_master, stepped;
  for (const TensorEntry& tensor : catalog.tensors) {
    if (is_state(tensor)) stepped.insert(state_name(tensor, true).param);
    auto name = master_of(tensor.key);
    const TensorEntry* weight = name ? catalog.find_tensor(*name) : nullptr;
    if (weight == nullptr || is_remainder(tensor)) continue;
    if (own_masters_.empty() || !is_own_master(weight->dtype)) add_pair(tensor, *weight);
    with_master.insert(std::move(*name));
  }
  for (const TrainedParam* const param : flat_params_) {
    if (param->master) add_pair(*param->master, *param->weight);
  }
  // Buffers have place for all other masters, or the layout would not fit.
  if (!flat_params_.empty()) list_frozen();
  if (with_master.empty() || !flat_params_.empty() || !are_all_named()) return;
  if (state_) add_other_names(with_master);
  for (const TensorEntry& tensor : catalog.tensors) {
    if (!is_named_weight(tensor) || with_master.contains(tensor.key)) continue;
    if (is_own_master(tensor.dtype) && stepped.contains(tensor.key)) continue;
    without_master_.add(tensor.key, kWithoutMaster);
  }
}

void StateCheck::add_other_names(std::set<std::string>& with_master) const {
  for (const ModelEntry& entry : state_->model) {
    if (entry.what != ModelEntry::What::OtherName) continue;
    const std::string& first = state_->params[entry.param].info.name;
    const bool has_master = with_master.contains(entry.name) || with_master.contains(first);
    if (has_master) with_master.insert({entry.name, first});
  }
}

void StateCheck::add_not_checked() {
  if (scanned_.empty() || !pairs_.empty() || !not_compared_.empty() || !are_all_named()) return;
  if (!with_remainder_.empty() || !own_masters_.empty()) return;
  const bool are_numbered = std::ranges::any_of(checkpoint_.catalog().tensors, is_unnamed_master);
  const bool are_masters = state_ && state_->filed.is_fully_sharded;
  report_.not_checked.push_back(
      {"masters against weights",
       are_masters    ? "the weights are stored as masters alone"
       : are_numbered ? "masters are numbered, and which parameter each belongs to is unknown"
                      : "there are no masters"});
}

void StateCheck::add_pair(const TensorEntry& master, const TensorEntry& weight) {
  if (const char* reason = why_not_compared(master, weight)) {
    return not_compared_.add(master.key, reason);
  }
  if (master.chunks.empty() || weight.chunks.empty()) return;  // of no elements
  std::vector<Pair> pairs = watch_pairs(master, weight);
  if (pairs.empty()) {
    pairs.push_back({&master, &weight, &master.chunks.at(0), &weight.chunks.at(0), std::nullopt});
  }
  pairs_.insert(pairs_.end(), pairs.begin(), pairs.end());
}

// Empty where not every chunk can be watched.
std::vector<StateCheck::Pair> StateCheck::watch_pairs(const TensorEntry& master,
                                                      const TensorEntry& weight) {
  std::vector<Pair> pairs;
  std::map<Extents, const Chunk*> weights;
  for (const Chunk& chunk : weight.chunks) weights.emplace(chunk.box.offsets, &chunk);
  for (const Chunk& chunk : master.chunks) {
    const auto found = weights.find(chunk.box.offsets);
    if (found == weights.end() || !(found->second->box == chunk.box)) {
      pairs.clear();
      if (!cut_alike(master, weight, pairs)) pairs.clear();
      return pairs;
    }
    if (!watch({&master, &weight, &chunk, found->second, {}}, pairs)) return {};
  }
  if (pairs.size() != weight.chunks.size()) pairs.clear();
  return pairs;
}

// False where one of its chunks is not a run of bytes.
bool StateCheck::watch(Pair pair, std::vector<Pair>& pairs) {
  const DType dtype = pair.weight->dtype;
  const auto weight = watch_.add(*pair.weight_chunk, dtype, Wanted::Finite, dtype);
  const auto master = watch_.add(*pair.master_chunk, DType::Float32, Wanted::Finite, dtype);
  if (!weight || !master) return false;
  pair.numbers = {*master, *weight};
  pairs.push_back(pair);
  return true;
}

// Both in the boxes that they have in common, as ranges of flat buffers end within rows. False
// where one of these is not a run of bytes.
bool StateCheck::cut_alike(const TensorEntry& master, const TensorEntry& weight,
                           std::vector<Pair>& pairs) {
  constexpr size_t kPairsMax = size_t{1} << 20;
  if (master.chunks.size() * weight.chunks.size() > kPairsMax) return false;
  uint64_t elements = 0;
  for (const Chunk& chunk : master.chunks) {
    for (const Chunk& other : weight.chunks) {
      const auto box = ckpt::intersect(chunk.box, other.box);
      if (!box) continue;
      const Chunk& of_weight = cut_.emplace_back(part_of(other, *box, weight.dtype));
      const Chunk& of_master = cut_.emplace_back(part_of(chunk, *box, DType::Float32));
      if (!watch({&master, &weight, &of_master, &of_weight, {}}, pairs)) return false;
      elements += ckpt::element_count(box->sizes);
    }
  }
  return elements == ckpt::element_count(weight.shape);
}

void StateCheck::finish(const std::vector<ckpt::FileAccount>& files,
                        const ckpt::SelectedRegions& selected) {
  std::map<std::string_view, const ckpt::FileAccount*> by_name;
  for (const ckpt::FileAccount& file : files) by_name.emplace(file.path, &file);
  for (uint32_t i = 0; i < checkpoint_.catalog().files.size(); ++i) {
    const auto file = by_name.find(checkpoint_.file_name(i));
    own_.push_back(file != by_name.end() ? *file->second : ckpt::FileAccount());
  }
  const auto is_selected = [&](const Chunk& chunk) {
    const ckpt::StorageRegion& stored = stored_region(chunk);
    return selected.contains(stored.file, stored.bytes);
  };
  for (const Scanned& scanned : scanned_) {
    if (is_own(*scanned.chunk) && is_selected(*scanned.chunk)) look_at(scanned);
  }
  for (const TensorEntry* const weight : own_masters_) {
    const Chunk& first = weight->chunks.at(0);
    if (!is_own(first) || !is_selected(first)) continue;
    ++report_.master_count;
    ++report_.matching_master_count;
  }
  for (const Pair& pair : pairs_) {
    if (!is_selected(*pair.master_chunk) || !is_selected(*pair.weight_chunk)) continue;
    if (is_own(*pair.master_chunk)) compare(pair);
  }
  differing_.put_into(report_.not_proven);
  look_for_zero_moments();
  look_for_known_issues();
}

bool StateCheck::is_own(const Chunk& chunk) const {
  const ckpt::StorageRegion& stored = stored_region(chunk);
  return own_.at(stored.file).owns(stored.bytes.offset_bytes);
}

const ckpt::StorageRegion& StateCheck::stored_region(const Chunk& chunk) const {
  const auto compressed = in_objects_.compressed.find(chunk.region.file);
  return compressed == in_objects_.compressed.end() ? chunk.region : compressed->second;
}

void StateCheck::compare(const Pair& pair) {
  if (pair.numbers) {
    if (!is_own(*pair.weight_chunk)) see_weight(pair);
    const auto& [master, weight] = *pair.numbers;
    // What kept them from being read is a finding.
    if (!watch_.is_seen(master) || !watch_.is_seen(weight)) return;
    ++report_.master_count;
    if (watch_[master].weight_sum == watch_[weight].weight_sum) {
      ++report_.matching_master_count;
      return;
    }
  } else {
    ++report_.master_count;
  }
  refuse(pair);
}

}  // namespace optim
