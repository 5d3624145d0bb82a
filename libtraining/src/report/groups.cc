#include <training/groups.h>

#include <algorithm>
#include <set>

#include <ckpt/error.h>
#include <ckpt/files_beside.h>
#include <ckpt/glob.h>
#include <training/megatron_folders.h>

#include "args/common_state.h"
#include "args/value_place.h"
#include "grid/build_state.h"
#include "grid/flat_buffers.h"
#include "grid/placement.h"
#include "grid/rank_files.h"
#include "model/tensor_names.h"
#include "report/flat_groups.h"
#include "verify/checks.h"

namespace optim {
namespace {

// Groups and owners of a checkpoint that names its parameters.
class NamedGroups {
 public:
  NamedGroups(const OpenedTraining& checkpoint, GroupReport& report)
      : checkpoint_(checkpoint), report_(report) {}

  void run(FiledState named) {
    auto state = std::make_shared<FiledState>(std::move(named));
    state_ = state.get();
    report_.state = state;
    if (state->chain.empty()) return;  // a model alone
    groups_ = group_params(state_->args(), state_->grid.sizes, state->params);
    add_groups();
    state_->filed.is_fully_sharded ? add_whole_params() : add_params();
  }

 private:
  void add_groups() {
    uint32_t group = 0;
    for (size_t i = 0; i < groups_.size(); ++i) {
      const uint32_t optimizer = groups_[i].optimizer_index;
      group = i > 0 && optimizer == groups_[i - 1].optimizer_index ? group + 1 : 0;
      StoredGroup stored{{}, optimizer, group, {}, groups_[i].params.size(), 0};
      for (const GroupedParam& param : groups_[i].params) {
        stored.element_count = *stored.element_count + elements_of(param.info);
      }
      const auto& nodes = state_->chain.at(optimizer).groups;
      if (group < nodes.size()) {
        stored.settings = settings_of(state_->common.tree.value(nodes[group]));
      }
      report_.groups.push_back(std::move(stored));
    }
  }

  static uint64_t elements_of(const ParamInfo& info) {
    return ckpt::element_count({info.shape.begin(), info.shape.end()});
  }

  // FSDP cuts each parameter over all ranks.
  void add_whole_params() {
    for (const TrainedParam& param : state_->params) {
      if (!param.master) continue;
      const auto& shape = param.weight->shape;
      report_.params.push_back({.name = param.info.name,
                                .shape = {shape.begin(), shape.end()},
                                .optimizer = param.optimizer,
                                .group = param.group});
    }
  }

  void add_params() {
    const Placement placement(*state_, state_->grid);
    for (const WorldRank& rank : ranks_of(state_->grid)) {
      report_.ranks.push_back({rank.rank, 0, 0, 0, 0.0});
    }
    std::vector<ParamGroup> dealt;
    for (const ParamGroup& group : groups_) {
      if (!is_flat(group.optimizer_index)) dealt.push_back(group);
    }
    if (!dealt.empty()) add_dealt(placement, dealt);
    if (dealt.size() != groups_.size()) add_flat_shares(placement);
  }

  // Whether ranks own ranges of elements of what an optimizer of the chain has.
  bool is_flat(uint32_t optimizer) const {
    return state_->filed.optimizers[optimizer]->by_elements;
  }

  // Whoever wrote them.
  void add_flat_shares(const Placement& placement) {
    const FlatArguments arguments = flat_arguments(state_->args(), "args");
    const FlatBuffers buffers(*state_, placement, groups_, arguments);
    FlatShares shares(*state_, buffers);
    for (const WorldRank& rank : ranks_of(state_->grid)) {
      for (uint32_t optimizer = 0; optimizer < state_->chain.size(); ++optimizer) {
        if (!is_flat(optimizer)) continue;
        for (const FlatShare& share : shares.of(optimizer, rank.at)) {
          add_owned({share.param, rank.rank, placement.shape_on_rank(share.param), share.range});
        }
      }
    }
  }

  // What ranks own as Megatron deals these groups, or, where files were written by other owners,
  // what their files hold.
  void add_dealt(const Placement& placement, const std::vector<ParamGroup>& groups) {
    for (const auto policy :
         {OwnershipPolicy::PingPong, OwnershipPolicy::Balanced, OwnershipPolicy::Lpt}) {
      const auto owners =
          owners_of({*state_, placement, groups, {state_->filed.is_layer_wise, policy}});
      if (!is_of_writers({owners.begin(), owners.end()})) continue;
      for (const auto& [param, rank] : owners) {
        add_owned({param, rank, placement.shape_on_rank(param)});
      }
      return;
    }
    for (uint32_t param = 0; param < state_->params.size(); ++param) {
      if (!is_flat(state_->params[param].optimizer)) add_writers_of(param, placement);
    }
  }

  struct Owned {
    uint32_t param, rank;
    ckpt::Extents shape;  // of the part
    std::optional<ElementRange> elements = {};
  };

  using Owner = std::pair<uint32_t, uint32_t>;  // a parameter and a rank

  std::vector<Owner> owners_of(const RankDeals& deals) const {
    std::vector<Owner> owners;
    for (const WorldRank& rank : ranks_of(state_->grid)) {
      for (const auto& group : deals.owned(rank.at)) {
        for (const HeldEntry& held : group) {
          owners.emplace_back(state_->model[held.entry].param, rank.rank);
        }
      }
    }
    return owners;
  }

  // Whether the files of torch_dist hold what these owners would have written; `torch` knows no
  // other owners.
  bool is_of_writers(const std::set<Owner>& owners) const {
    if (state_->filed.container == ckpt::Format::Torch) return true;
    for (uint32_t i = 0; i < state_->params.size(); ++i) {
      if (!state_->params[i].master || is_flat(state_->params[i].optimizer)) continue;
      for (const ckpt::Chunk& chunk : state_->params[i].master->chunks) {
        if (!owners.contains({i, writer_of_chunk(chunk)})) return false;
      }
    }
    return true;
  }

  uint32_t writer_of_chunk(const ckpt::Chunk& chunk) const {
    return writer_of(checkpoint_.catalog().files[chunk.region.file].path).value_or(0);
  }

  // Of a parameter that tensor parallel ranks have whole, the first one's copy is written: the
  // others deal the same shapes, so that theirs has the same place among the ranks that share it.
  void add_writers_of(uint32_t param, const Placement& placement) {
    if (!state_->params[param].master) return;
    std::set<uint32_t> writers;
    for (const ckpt::Chunk& chunk : state_->params[param].master->chunks) {
      writers.insert(writer_of_chunk(chunk));
    }
    const bool is_whole = placement.tensor_ranks(param) == 1;
    const std::vector<WorldRank> ranks = ranks_of(state_->grid);
    for (const WorldRank& rank : ranks) {
      const bool is_owner = std::ranges::any_of(writers, [&](uint32_t writer) {
        if (writer == rank.rank) return true;
        return is_whole && writer < ranks.size() &&
               differ_in_tensor_rank(ranks[writer].at, rank.at, placement.is_expert(param));
      });
      if (is_owner) add_owned({param, rank.rank, placement.shape_on_rank(param)});
    }
  }

  static bool differ_in_tensor_rank(const RankCoordinates& a, const RankCoordinates& b,
                                    bool is_expert) {
    if (is_expert) return a.pp == b.pp && a.ep == b.ep && a.edp == b.edp && a.etp != b.etp;
    return a.pp == b.pp && a.dp_cp == b.dp_cp && a.tp != b.tp;
  }

  void add_owned(const Owned& owned) {
    const TrainedParam& param = state_->params[owned.param];
    report_.params.push_back({param.info.name,
                              {owned.shape.begin(), owned.shape.end()},
                              owned.elements,
                              owned.rank,
                              param.optimizer,
                              param.group});
    if (owned.rank >= report_.ranks.size()) return;
    RankLoad& load = report_.ranks[owned.rank];
    const uint64_t part = ckpt::element_count(owned.shape);
    const uint64_t elements = owned.elements ? owned.elements->end - owned.elements->begin : part;
    const uint64_t whole = ckpt::element_count(param.weight->shape);
    ++load.param_count;
    load.element_count += elements;
    const uint64_t bytes = state_bytes_of(param);
    load.state_bytes += elements == whole ? bytes : bytes / std::max<uint64_t>(whole, 1) * elements;
    ParamInfo info = param.info;
    info.shape.assign(owned.shape.begin(), owned.shape.end());
    const double share =
        owned.elements ? static_cast<double>(elements) / static_cast<double>(part) : 1;
    load.cost = *load.cost + update_cost(info, group_at(param)) * share;
  }

  const ParamGroup& group_at(const TrainedParam& param) const {
    for (size_t i = 0; i < groups_.size(); ++i) {
      const StoredGroup& stored = report_.groups[i];
      if (stored.optimizer == param.optimizer && stored.group == param.group) return groups_[i];
    }
    return groups_.front();
  }

  static uint64_t state_bytes_of(const TrainedParam& param) {
    uint64_t bytes = param.master ? ckpt::count_bytes(*param.master) : 0;
    for (const StateTensor& state : param.states) bytes += ckpt::count_bytes(*state.value);
    return bytes;
  }

  const OpenedTraining& checkpoint_;
  GroupReport& report_;
  const FiledState* state_ = nullptr;
  std::vector<ParamGroup> groups_;  // as the model's parameters make them
};

bool is_optimizer(const OpenedTraining& checkpoint, const ckpt::FileBeside& file) {
  const bool has_name =
      file.path == "optimizer.pt" ||
      (file.path.find('/') == file.path.npos && ckpt::Glob("optimizer*.bin").matches(file.path));
  if (!has_name || file.is_folder) return false;
  const bool follows = checkpoint.limits().follow_links;
  const auto entry = checkpoint.source().stat_entry(checkpoint.folder() / file.path);
  return entry.kind == ckpt::EntryKind::File || (follows && entry.kind == ckpt::EntryKind::Link);
}

// Trainers that file weights for others to read keep the optimizer beside them.
void add_beside(const OpenedTraining& checkpoint, GroupReport& report) {
  if (is_megatron(checkpoint)) return;
  for (const ckpt::FileBeside& file : files_beside(checkpoint)) {
    if (!is_optimizer(checkpoint, file)) continue;
    const auto opened = open_beside(checkpoint, file.path);
    GroupReport found = find_groups(*opened);
    const uint32_t first = report.groups.empty() ? 0 : report.groups.back().optimizer + 1;
    for (StoredGroup& group : found.groups) {
      group.file = file.path;
      group.optimizer += first;
      report.groups.push_back(std::move(group));
    }
    for (OwnedParam& param : found.params) {
      param.optimizer += first;
      report.params.push_back(std::move(param));
    }
    report.unnamed_reason = found.unnamed_reason;
    report.names = found.names;
    report.has_groups_of_params = found.has_groups_of_params;
    std::ranges::move(found.documents, std::back_inserter(report.documents));
    report.beside.emplace_back(file.path, opened);
  }
}

}  // namespace

GroupReport find_groups(const OpenedTraining& checkpoint) {
  GroupReport report;
  try {
    if (has_training_state(checkpoint)) {
      NamedGroups(checkpoint, report).run(read_training_state(checkpoint));
    } else {
      report.unnamed_reason = "this is " + kind_of_checkpoint(checkpoint);
    }
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported) throw;
    report = {};
    report.unnamed_reason = error.what();
  }
  if (!report.unnamed_reason.empty()) {
    add_stored(checkpoint, report);
    if (report.groups.empty() && report.params.empty()) add_beside(checkpoint, report);
  }
  std::ranges::stable_sort(report.params, {}, &OwnedParam::rank);
  return report;
}

GroupReport describe_groups(const OpenedTraining& checkpoint) {
  GroupReport report = find_groups(checkpoint);
  if (!report.groups.empty() || !report.params.empty()) return report;
  throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = checkpoint.shown_path(), .key = {}},
                    "has no parameter groups and no optimizer state");
}

}  // namespace optim
