// Reads the training state of a `torch` folder: the model of each rank folder, and the optimizer
// state of each rank: in layer_wise_optimizer_D.pt, or, where no optimizer is sharded, beside the
// model. Those files number their parameters; names come from replaying Megatron's deal. The state
// of a DistributedOptimizer lies in flat buffers; names come from the order of the buffer.
#include <algorithm>
#include <optional>
#include <string>

#include <ckpt/diff.h>
#include <training/opened_training.h>
#include <training/training_state.h>

#include "args/run_args.h"
#include "args/value_place.h"
#include "grid/build_state.h"
#include "grid/glu_rows.h"
#include "grid/placement.h"
#include "grid/sharing_of_params.h"
#include "grid/target_groups.h"
#include "grid/whole_states.h"
#include "layouts/job/filing_hooks.h"
#include "layouts/parts/precision_aware.h"
#include "layouts/parts/rank_items.h"
#include "layouts/parts/tensor_parts.h"
#include "layouts/parts/torch_source.h"
#include "layouts/torch/readers.h"
#include "layouts/torch/torch_optimizers.h"
#include "state/state_values.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr std::string_view kRepeatedKey = "optimizer";

// Optimizer state that a model's file repeats of its writer's, as its value of `optimizer`: throws
// Corrupt where the two differ, as files of different moments do. Where their archives state the
// same checksums of storages that are viewed alike, no payload is read.
void check_repeated_state(const OpenedTraining& source, const std::string& model_file,
                          const std::string& rank_file) {
  const auto copy = source.document(model_file)->tree.root().find(kRepeatedKey);
  if (!copy) return;
  const Place copy_place = Place{model_file, ""} / kRepeatedKey;
  const std::string rank_file_name = rank_file.substr(rank_file.rfind('/') + 1);
  if (const auto where = first_difference(*copy, source.document(rank_file)->tree.root())) {
    Place{model_file, copy_place.pointer + *where}.corrupt(
        "differs from " + rank_file_name + ", which it should repeat", kMixedFilesHint);
  }
  for (const TensorEntry& tensor : source.catalog().tensors) {
    if (tensor.file != rank_file) continue;
    const Place own{model_file, copy_place.pointer + tensor.key};
    const TensorEntry* repeated = source.catalog().find_tensor(own.pointer, own.file);
    if (repeated == nullptr) own.corrupt("is not a tensor");
    if (are_equal(*repeated, tensor, source)) continue;
    own.corrupt("its values differ from " + rank_file_name + ", which it should repeat",
                kMixedFilesHint);
  }
}

constexpr std::string_view kRng = "rng_state", kRerun = "rerun_state_machine";
// Of args: the rank that wrote them.
constexpr std::string_view kOwnArgs[] = {"rank", "local_rank"};

bool is_of_state(std::string_view key) {
  return key.starts_with("model") || key == "optimizer";  // model, model0, ...
}

// What the model files hold beside model and optimizer: one common state out of those that rank
// files repeat. The first file's goes to `common`, random states of all ranks to `state`. Throws
// Corrupt where files differ in what all ranks have alike: args but the rank's number, iteration,
// schedule.
class Carrier {
 public:
  Carrier(const TorchSource& source, CommonBuilder& common, TrainingState& state)
      : source_(source), common_(common), state_(state) {}

  void run() {
    for (const WorldRank& rank : source_.ranks) {
      if (!rank.writes_model) continue;
      require_rank(rank);
      if (first_ == nullptr) carry(rank);
      if (first_ != &rank) compare(rank);
      carry_rng(rank);
    }
    for (const std::string_view key : lost_) {
      common_.erase(key);
      state_.not_carried.push_back({std::string(key),
                                    "it holds counters of each rank, which differ; Megatron starts "
                                    "with new ones",
                                    std::string(key)});
    }
  }

 private:
  // Whether a rank writes this file in some release, so that it may have been the last one.
  bool may_have_written(int64_t stated, const WorldRank& rank) const {
    const bool is_rank = stated >= 0 && static_cast<uint64_t>(stated) < source_.ranks.size();
    if (!is_rank) return false;
    const WorldRank& writer = source_.ranks[static_cast<size_t>(stated)];
    return writer.folder == rank.folder && may_write_model(writer.at);
  }

  // The rank that wrote a file, as its args state it.
  void require_rank(const WorldRank& rank) const {
    const Value root = document_of(rank).tree.root();
    const auto args = root.find("args");
    const auto attributes = args && args->is(Kind::Object) ? args->state() : std::nullopt;
    const auto stated = attributes ? attributes->find("rank") : std::nullopt;
    if (!stated || !stated->is(Kind::Int) || may_have_written(stated->as_int(), rank)) return;
    (Place{rank.model_file(), ""} / "args" / "@rank")
        .corrupt("is " + std::to_string(stated->as_int()) + ", but rank " +
                     std::to_string(rank.rank) + " writes this file",
                 "rank folders may have been swapped or renamed");
  }

  const Document& document_of(const WorldRank& rank) const {
    return source_.document(rank.model_file());
  }

  void carry(const WorldRank& rank) {
    first_ = &rank;
    const Document& document = document_of(rank);
    const Value root = document.tree.root();
    for (const auto& [key, value] : ckpt::items_of(root)) {
      if (!key.is(Kind::Str) || is_of_state(key.text())) continue;
      common_.put(key.text(), common_.carry(value, document));
    }
  }

  void compare(const WorldRank& rank) {
    const Value known = document_of(*first_).tree.root(), own = document_of(rank).tree.root();
    const Place first{first_->model_file(), ""}, place{rank.model_file(), ""};
    for (const auto& [key, value] : ckpt::items_of(known)) {
      if (!key.is(Kind::Str) || is_of_state(key.text()) || key.text() == kRng) continue;
      const auto other = own.find(key.text());
      if (!other)
        place.corrupt("has no '" + std::string(key.text()) + "', which " + first.file + " has",
                      kMixedFilesHint);
      if (key.text() == "args") {
        compare_args(value, {*other, place / "args"});
        continue;
      }
      if (are_equal_values(source_.checkpoint, {value, first / key.text()},
                           {*other, place / key.text()})) {
        continue;
      }
      if (key.text() != kRerun)
        (place / key.text()).corrupt("differs from its value in " + first.file, kMixedFilesHint);
      if (std::ranges::find(lost_, kRerun) == lost_.end()) lost_.push_back(kRerun);
    }
  }

  void compare_args(const Value& known, const PlacedValue& own) {
    const auto attributes = known.state(), own_attributes = own.value.state();
    if (!attributes || !own_attributes) own.place.corrupt("is not an argparse.Namespace");
    for (const auto& [key, value] : ckpt::items_of(*attributes)) {
      if (!key.is(Kind::Str)) continue;
      if (std::ranges::find(kOwnArgs, key.text()) != std::end(kOwnArgs)) continue;
      const auto other = own_attributes->find(key.text());
      if (other && !first_difference(value, *other)) continue;
      if (other && ckpt::one_member(value, *other) == ckpt::OneMember::Maybe) {
        state_.maybe_equal_args.insert(std::string(key.text()));
        continue;
      }
      (own.place / ("@" + std::string(key.text())))
          .corrupt("differs from its value in the first rank folder", kMixedFilesHint);
    }
  }

  void carry_rng(const WorldRank& rank) {
    const Document& document = document_of(rank);
    const auto rng = document.tree.root().find(kRng);
    if (!rng) return;
    state_.rng_states.push_back(
        {rank.at.tp, rank.at.pp, rank.at.ep, common_.carry(*rng, document)});
  }

  const TorchSource& source_;
  CommonBuilder& common_;
  TrainingState& state_;
  const WorldRank* first_ = nullptr;
  std::vector<std::string_view> lost_;
};

class Reader {
 public:
  Reader(const OpenedTraining& checkpoint, const ReadOptions& options, const Filing& filing)
      : source_{checkpoint, {}},
        options_(options),
        filing_(filing),
        is_sharded_(&filing == &kDealt) {}

  FiledState run() {
    const std::string file = first_model_file(source_.checkpoint);
    const Document& first = source_.document(file);
    const Value args = attributes_of_args(first.tree.root(), file);
    state_.rules = options_.rules;
    read_args(args, file, state_);
    source_.ranks = ranks_of(state_.grid);
    require_files();
    Carrier(source_, common_, state_).run();
    TorchModels(source_, state_, common_).read(parts_);
    const bool has_hooks = filing_.in_rank_files != nullptr;
    if (!options_.model_only && !has_hooks) read_optimizers(args);
    join_weights();
    if (!options_.model_only && has_hooks) read_by_hooks(args);
    if (!has_hooks) join_states();
    finish_state(state_, common_, source_.checkpoint);
    refuse_absent();
    return std::move(state_);
  }

 private:
  void require_files() const {
    const bool has_optimizer_files = is_sharded_ && !options_.model_only;
    const std::string loss = loss_in_rank_files(source_.ranks, {has_optimizer_files});
    if (!loss.empty()) refuse_overwritten(loss);
    for (const WorldRank& rank : source_.ranks) {
      if (rank.writes_since_core_019 && !source_.checkpoint.document(rank.model_file())) {
        refuse_overwritten("no rank writes " + rank.model_file());
      }
      if (rank.writes_model) source_.document(rank.model_file());
      if (has_optimizer_files) source_.document(rank.optimizer_file());
    }
    refuse_left_over_files(source_, is_sharded_);
  }

  [[noreturn]] void refuse_overwritten(const std::string& loss) const {
    const bool has_context = state_.grid.sizes.context_parallel > 1;
    throw Error(ErrorCode::Corrupt, {.file = source_.checkpoint.shown_path(), .key = {}},
                (has_context ? "context-parallel ranks overwrote each other's files: " : "") +
                    loss + ", so that state was lost when it was saved",
                "--model-only carries the model's weights, which are complete");
  }

  std::vector<ParamGroup> groups_of_params(const Value& args) {
    for (TrainedParam& param : state_.params) {
      const std::string& name = param.info.name;
      if (is_buffer(state_, name) || options_.frozen.contains(name)) {
        param.info.requires_grad = false;
      }
    }
    std::vector<ParamGroup> groups = group_params(args, state_.grid.sizes, state_.params);
    state_.chain.resize(groups.empty() ? 0 : groups.back().optimizer_index + 1);
    state_.filed.optimizers.assign(state_.chain.size(), &filing_);
    return groups;
  }

  void read_by_hooks(const Value& args) {
    const std::vector<ParamGroup> groups = groups_of_params(args);
    filing_.in_rank_files->read({source_, args, groups, common_, state_});
    take_remainders(args, source_.checkpoint, state_);
  }

  void read_optimizers(const Value& args) {
    const std::vector<ParamGroup> groups = groups_of_params(args);
    const Placement placement(state_, state_.grid);
    const RankDeals deals(state_, placement, groups, {is_sharded_, OwnershipPolicy::PingPong});
    TorchOptimizers optimizers(source_, deals, {state_, common_, parts_});
    for (const WorldRank& rank : source_.ranks) {
      if (!is_sharded_ && !rank.writes_model) continue;
      read_rank(rank, optimizers);
    }
    optimizers.finish();
    absent_ = optimizers.absent();
  }

  // An optimizer has no state of any parameter before its first step, and SGD none without
  // momentum.
  void refuse_absent() const {
    if (!absent_) return;
    const TrainedParam& param = state_.params[absent_->param];
    const NodeId group = state_.chain[param.optimizer].groups[param.group];
    if (number_in(state_.common.tree.value(group), "momentum") == 0.0) return;
    if (has_stepped(state_, param.optimizer) == Stepped::Never) return;
    absent_->place.corrupt("has no state of '" + ckpt::escaped(param.info.name) + "'");
  }

  void read_rank(const WorldRank& rank, TorchOptimizers& optimizers) const {
    const std::string file = is_sharded_ ? rank.optimizer_file() : rank.model_file();
    const Document& document = source_.document(file);
    const Place root{file, ""};
    if (is_sharded_) {
      optimizers.read({rank, document, document.tree.root(), root});
      if (rank.writes_model) check_repeated_state(source_.checkpoint, rank.model_file(), file);
      return;
    }
    optimizers.read(
        {rank, document, member(document.tree.root(), "optimizer", root), root / "optimizer"});
  }

  void join_weights() {
    ask_for_gating(state_);
    for (TrainedParam& param : state_.params) {
      const uint32_t ranks = ranks_of_tensor(param);
      param.sharing = sharing_of(state_, param, ranks, common_.tree());
      param.weight = join(param.info.name, param.sharing, ranks);
      const auto& shape = param.weight->shape;
      param.info.shape.assign(shape.begin(), shape.end());
    }
  }

  uint32_t ranks_of_tensor(const TrainedParam& param) const {
    return tensor_ranks(state_.grid.sizes, expert_in(param.info.name).has_value());
  }

  void join_states() {
    for (TrainedParam& param : state_.params) join_states(param, ranks_of_tensor(param));
  }

  void join_states(TrainedParam& param, uint32_t tensor_ranks) const {
    const std::string name = param.info.name;
    const std::string master = state_key(kMasterState, name);
    if (parts_.first(master) != nullptr) param.master = join(master, param.sharing, tensor_ranks);
    for (StateTensor& state : param.states) {
      const std::string key = state_key(state.name, name);
      const bool is_of_shape = parts_.first(key)->shape == parts_.first(name)->shape;
      if (!is_of_shape && tensor_ranks > 1 && param.sharing.is_split()) {
        throw Error(ErrorCode::Unsupported, {.file = {}, .key = key},
                    "each tensor-parallel rank has one of its own shape, which is not supported");
      }
      state.value = join(key, is_of_shape ? param.sharing : TensorSharing{true}, tensor_ranks);
    }
  }

  TensorRef join(const std::string& key, const TensorSharing& sharing,
                 uint32_t tensor_ranks) const {
    parts_.compare_copies(source_.checkpoint, key, !sharing.is_split() || tensor_ranks == 1);
    return parts_.join(key, {sharing, tensor_ranks});
  }

  TorchSource source_;
  const ReadOptions& options_;
  const Filing& filing_;
  bool is_sharded_;  // in files of each rank
  FiledState state_;
  CommonBuilder common_;
  TensorParts parts_;
  std::optional<TorchOptimizers::Absent> absent_;
};

}  // namespace

bool has_rank_files(const OpenedTraining& checkpoint) {
  return std::ranges::any_of(checkpoint.catalog().files, [](const ckpt::FileEntry& file) {
    return file.path.find("/layer_wise_optimizer_") != file.path.npos;
  });
}

bool has_flat_files(const OpenedTraining& checkpoint) {
  return std::ranges::any_of(checkpoint.catalog().files, [](const ckpt::FileEntry& file) {
    return file.path.ends_with("/" + std::string(kFlatFileName));
  });
}

bool is_model_alone(const OpenedTraining& checkpoint) {
  const RunArgs& args = checkpoint.args();
  if (has_rank_files(checkpoint) || !args.is_true(kLayerWiseArg)) return false;
  const Document* const document = checkpoint.document(args.file());
  return document != nullptr && !document->tree.root().find("optimizer");
}

// Saved without an optimizer, a model file has none of its settings.
static bool lacks_optimizer(const OpenedTraining& checkpoint, const Filing& filing) {
  if (&filing == &kDealt) return is_model_alone(checkpoint);
  if (&filing == &kFlatFile && has_flat_files(checkpoint)) return false;
  const Document* const first = checkpoint.document(first_model_file(checkpoint));
  return first != nullptr && !first->tree.root().find("optimizer");
}

FiledState read_torch_folder(const OpenedTraining& checkpoint, const Filing& filing,
                             const ReadOptions& options) {
  ReadOptions own = options;
  own.model_only = options.model_only || lacks_optimizer(checkpoint, filing);
  return Reader(checkpoint, own, filing).run();
}

}  // namespace optim
