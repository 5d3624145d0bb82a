#include <optim/groups.h>

#include <algorithm>
#include <map>

#include <ckpt/error.h>

#include "layout/checkpoint_kind.h"
#include "layout/group_search.h"
#include "layout/layer_wise_view.h"
#include "layout/state_names.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::TensorEntry;
using ckpt::Value;

std::vector<std::pair<std::string, Value>> settings_of(const Value& group) {
  std::vector<std::pair<std::string, Value>> settings;
  for (size_t i = 0; group.is(Kind::Dict) && i < group.item_count(); ++i) {
    const auto [key, value] = group.item(i);
    const std::string name = ckpt::key_text(key);
    if (name != "params") settings.emplace_back(name, value);
  }
  return settings;
}

// Groups and owners of a LayerWise checkpoint.
class NamedGroups {
 public:
  NamedGroups(const ckpt::Checkpoint& checkpoint, GroupReport& report)
      : checkpoint_(checkpoint), report_(report) {}

  void run(LayerWiseCheckpoint named) {
    auto view = std::make_shared<LayerWiseCheckpoint>(std::move(named));
    view_ = view.get();
    const std::vector<ParamGroup> groups = group_params(view_->args(), view->params);
    add_groups(groups);
    add_params(groups);
    report_.view = std::move(view);
  }

 private:
  void add_groups(const std::vector<ParamGroup>& groups) {
    uint32_t group = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
      const uint32_t optimizer = groups[i].optimizer_index;
      group = i > 0 && optimizer == groups[i - 1].optimizer_index ? group + 1 : 0;
      StoredGroup stored{{}, optimizer, group, {}, groups[i].params.size(), 0};
      for (const GroupedParam& param : groups[i].params) {
        stored.element_count = *stored.element_count + elements_of(param.info);
      }
      const auto& nodes = view_->optimizers.at(optimizer).groups;
      if (group < nodes.size()) {
        stored.settings = settings_of(view_->common.tree.value(nodes[group]));
      }
      report_.groups.push_back(std::move(stored));
    }
  }

  static uint64_t elements_of(const ParamInfo& info) {
    return ckpt::element_count({info.shape.begin(), info.shape.end()});
  }

  void add_params(const std::vector<ParamGroup>& groups) {
    std::map<std::pair<uint32_t, uint32_t>, const ParamGroup*> by_place;
    for (size_t i = 0; i < groups.size(); ++i) {
      by_place.emplace(std::pair(report_.groups[i].optimizer, report_.groups[i].group), &groups[i]);
    }
    std::map<uint32_t, RankLoad> loads;
    for (uint32_t rank = 0; rank < view_->sizes.data_parallel; ++rank) {
      loads[rank] = {rank, 0, 0, 0, 0.0};
    }
    for (const LayerWiseParam& param : view_->params) {
      const uint32_t rank = owner_of(param);
      report_.params.push_back({param.info.name,
                                {param.info.shape.begin(), param.info.shape.end()},
                                rank,
                                param.optimizer,
                                param.group});
      RankLoad& load = loads.try_emplace(rank, RankLoad{rank, 0, 0, 0, 0.0}).first->second;
      ++load.param_count;
      load.element_count += elements_of(param.info);
      load.state_bytes += state_bytes_of(param);
      load.cost =
          *load.cost + update_cost(param.info, *by_place.at({param.optimizer, param.group}));
    }
    for (const auto& [rank, load] : loads) report_.ranks.push_back(load);
  }

  // Who wrote the master.
  uint32_t owner_of(const LayerWiseParam& param) const {
    const TensorEntry* master =
        view_->tensors.find_tensor(state_key(kMasterState, param.info.name));
    if (master == nullptr || master->chunks.empty()) return 0;
    const uint32_t file = master->chunks[0].region.file;
    return writer_of(checkpoint_.catalog().files[file].path).value_or(0);
  }

  uint64_t state_bytes_of(const LayerWiseParam& param) const {
    uint64_t bytes = 0;
    const auto add = [&](std::string_view state) {
      const TensorEntry* tensor = view_->tensors.find_tensor(state_key(state, param.info.name));
      if (tensor != nullptr) bytes += ckpt::count_bytes(*tensor);
    };
    add(kMasterState);
    for (const std::string& state : param.states) add(state);
    return bytes;
  }

  const ckpt::Checkpoint& checkpoint_;
  GroupReport& report_;
  const LayerWiseCheckpoint* view_ = nullptr;
};

void add_stored_groups(const ckpt::Checkpoint& checkpoint, GroupReport& report) {
  std::map<std::string, uint32_t> optimizers;  // of each file
  for (const FoundOptimizer& found : find_optimizers(checkpoint)) {
    const std::string& place = found.object.empty() ? found.file : found.object;
    const uint32_t optimizer = optimizers[place]++;
    if (found.document) report.documents.push_back(found.document);
    for (uint32_t i = 0; i < found.groups.size(); ++i) {
      StoredGroup stored{place, optimizer, i, settings_of(found.groups[i]), {}, {}};
      const auto params =
          found.groups[i].is(Kind::Dict) ? found.groups[i].find("params") : std::nullopt;
      if (params && params->is(Kind::List)) stored.param_count = params->size();
      report.groups.push_back(std::move(stored));
    }
  }
}

// Of torch_dist: each file's chunks of optimizer state belong to the rank that wrote it.
void add_writers(const ckpt::Checkpoint& checkpoint, GroupReport& report) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  std::map<uint32_t, RankLoad> loads;
  for (const TensorEntry& tensor : catalog.tensors) {
    if (!is_state(tensor) && !is_flat_buffer(tensor)) continue;
    for (const ckpt::Chunk& chunk : tensor.chunks) {
      const auto rank = writer_of(catalog.files[chunk.region.file].path);
      if (!rank) continue;
      const uint64_t elements = ckpt::element_count(chunk.box.sizes);
      RankLoad& load = loads.try_emplace(*rank, RankLoad{*rank, 0, 0, 0, {}}).first->second;
      ++load.param_count;
      load.element_count += elements;
      load.state_bytes += elements * ckpt::bytes_per_element(tensor.dtype);
      report.params.push_back(
          {tensor.key, {chunk.box.sizes.begin(), chunk.box.sizes.end()}, *rank});
    }
  }
  for (const auto& [rank, load] : loads) report.ranks.push_back(load);
}

}  // namespace

GroupReport describe_groups(const ckpt::Checkpoint& checkpoint) {
  GroupReport report;
  try {
    if (is_layer_wise(checkpoint)) {
      NamedGroups(checkpoint, report).run(name_layer_wise(checkpoint));
    } else {
      report.unnamed_reason = "this is " + kind_of_checkpoint(checkpoint);
    }
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported) throw;
    report = {};
    report.unnamed_reason = error.what();
  }
  if (!report.unnamed_reason.empty()) {
    add_stored_groups(checkpoint, report);
    add_writers(checkpoint, report);
  }
  if (report.groups.empty() && report.params.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = checkpoint.folder().string(), .key = {}},
                      "has no parameter groups and no optimizer state");
  }
  std::ranges::stable_sort(report.params, {}, &OwnedParam::rank);
  return report;
}

}  // namespace optim
