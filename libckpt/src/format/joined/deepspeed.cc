#include "format/joined/rank_files.h"

#include <algorithm>
#include <map>
#include <set>

#include <ckpt/error.h>

#include "base/text.h"
#include "format/joined/deepspeed_state.h"
#include "format/torch/torch_save.h"
#include "format/values/nesting.h"
#include "format/values/torch_values.h"

namespace ckpt {
namespace {

using std::string_view;

constexpr uint64_t kTagBytesMax = 256;

class DeepSpeedReader : DeepSpeedState {
 public:
  using DeepSpeedState::DeepSpeedState;

  void run() {
    files_.refuse_other_forms();
    if (files_.has(DeepSpeedFiles::kUniversal)) {
      read_universal();
    } else {
      read_partitions();
    }
    files_.find_renamed();
    files_.refuse_incomplete_unless_allowed();
    state_.finish(root_, files_.contents());
  }

 private:
  static const RankDocument* first_of(const std::vector<RankDocument>& files) {
    const auto found = std::ranges::find_if(
        files, [](const RankDocument& file) { return file.document != nullptr; });
    return found == files.end() ? nullptr : &*found;
  }

  // --- ZeRO ---

  void read_partitions() {
    optimizers_ = files_.open_ranks(DeepSpeedFiles::kOptimizerSuffix);
    const RankDocument* const first = first_of(optimizers_);
    files_.refuse_incomplete_unless_allowed();
    if (first == nullptr) return;
    const int stage = files_.zero_stage(*first);
    files_.contents().joined_words = "DeepSpeed ZeRO-" + std::to_string(stage) + ", files of " +
                                     std::to_string(optimizers_.size()) + " ranks";
    const std::vector<RankDocument> models =
        stage == 3 ? files_.open_ranks(DeepSpeedFiles::kModelSuffix, optimizers_.size())
                   : std::vector{files_.open(std::string(DeepSpeedFiles::kWholeModel))};
    const RankDocument* const model = first_of(models);
    files_.refuse_incomplete_unless_allowed();
    if (model == nullptr) return;
    read_flat(stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
    files_.compare_optimizers(optimizers_, files_.param_numbers(*first));
    files_.compare_models(models);
    cut(stage, *first, *model);
    if (stage != 3) files_.compare_mappings(optimizers_, params_);
    add_buffers(*model);
    add_frozen(models, stage);
    for (const FlatParam& param : params_) {
      put(root_, param.name, tensor_of_parts(param, DType::Float32, [&](const FlatPart& part) {
            return &flat_[part.rank][part.group];
          }));
    }
    add_shared(*model);
    add_optimizer(*first, *model);
    add_rest(*model, first);
  }

  void read_flat(const char* name) {
    for (const RankDocument& file : optimizers_) {
      flat_.emplace_back();
      if (file.document == nullptr) continue;
      const auto groups = files_.optimizer_state(file).find(name);
      if (!groups || !groups->is(Kind::List)) {
        files_.refuse(file.name, name, "is not a list of tensors");
      }
      for (size_t i = 0; i < groups->size(); ++i) {
        flat_.back().push_back(flat_tensor((*groups)[i], file, name));
        if (flat_.back().back().dtype != DType::Float32) {
          files_.refuse(file.name, name, "is not of float32");
        }
      }
      group_count_ = std::max(group_count_, flat_.back().size());
    }
    for (size_t rank = 0; rank < flat_.size(); ++rank) {
      if (flat_[rank].size() == group_count_) continue;
      files_.tell(optimizers_[rank].name, "has " + std::to_string(flat_[rank].size()) +
                                              " groups, other ranks have " +
                                              std::to_string(group_count_));
      flat_[rank].clear();
    }
  }

  // A 1-D tensor without strides.
  TensorEntry flat_tensor(const Value& value, const RankDocument& file,
                          const std::string& key) const {
    const auto view = as_tensor(value);
    if (!view || view->shape.size() != 1) files_.refuse(file.name, key, "is not a flat tensor");
    TensorEntry entry = make_tensor_entry(*file.document, {key, value.id(), *view}, file.name);
    if (entry.chunks.at(0).view) files_.refuse(file.name, key, "is not a flat tensor");
    return entry;
  }

  void cut(int stage, const RankDocument& optimizer, const RankDocument& model) {
    const auto groups = files_.shapes(model, stage == 3 ? nullptr : &optimizer);
    FlatLengths lengths(flat_.size());
    for (size_t rank = 0; rank < flat_.size(); ++rank) {
      for (const TensorEntry& tensor : flat_[rank]) lengths[rank].push_back(tensor.shape[0]);
    }
    if (stage == 3) {
      params_ = cut_params(groups, lengths);
      check_ranks(groups, lengths);
    } else {
      if (groups.size() != group_count_) {
        files_.refuse(model.name, "param_shapes",
                      "has a number of groups that differs from the optimizer's files",
                      ErrorCode::Corrupt);
      }
      params_ = cut_groups(groups, lengths);
      for (size_t i = 0; i < groups.size(); ++i) check_group(i, groups[i], lengths, model);
    }
  }

  // As zero_to_fp32.py: in multiples of twice the ranks, what is there is what parameters take.
  void check_group(size_t group, const std::vector<NamedShape>& shapes, const FlatLengths& lengths,
                   const RankDocument& model) const {
    uint64_t there = 0;
    for (const std::vector<uint64_t>& of_rank : lengths) {
      if (of_rank.empty()) return;
      there += of_rank[group];
    }
    const uint64_t taken = count_of_group(shapes), align = 2 * lengths.size();
    if ((taken + align - 1) / align == (there + align - 1) / align) return;
    files_.refuse(model.name, "param_shapes",
                  "parameters of group " + std::to_string(group) + " have " +
                      std::to_string(taken) + " elements, the ranks' partitions " +
                      std::to_string(there),
                  ErrorCode::Corrupt);
  }

  void check_ranks(std::span<const std::vector<NamedShape>> groups, const FlatLengths& lengths) {
    const uint64_t wanted = count_of_rank(groups, lengths.size());
    for (size_t rank = 0; rank < lengths.size(); ++rank) {
      uint64_t there = 0;
      for (const uint64_t count : lengths[rank]) there += count;
      if (lengths[rank].empty() || there == wanted) continue;
      files_.tell(optimizers_[rank].name, "has " + std::to_string(there) +
                                              " elements of parameters, whose shapes give " +
                                              std::to_string(wanted) + " to each rank");
    }
  }

  // Whole in ZeRO-1 and 2, a part in each rank's model of ZeRO-3; in their own type, as
  // zero_to_fp32.py leaves them.
  void add_frozen(const std::vector<RankDocument>& models, int stage) {
    const auto shapes = files_.in_model(*first_of(models), "frozen_param_shapes");
    const auto mapping = shapes ? as_mapping(*shapes) : std::nullopt;
    for (const auto& [key, value] : items_of(mapping)) {
      const auto sizes = sizes_in(value);
      if (!sizes) files_.refuse(models[0].name, "frozen_param_shapes", "is not a shape");
      add_frozen_param(models, stage, {key_text(key), *sizes, {}});
    }
  }

  void add_frozen_param(const std::vector<RankDocument>& models, int stage, FlatParam param) {
    std::vector<TensorEntry> parts;
    const uint64_t count = element_count(param.shape);
    uint64_t first = 0;
    for (const RankDocument& model : models) {
      if (model.document == nullptr) break;
      const auto all = files_.in_model(model, "frozen_param_fragments");
      const auto mapping = all ? as_mapping(*all) : std::nullopt;
      const auto value = mapping ? mapping->find(param.name) : std::nullopt;
      if (!value) files_.refuse(model.name, param.name, "has no fragment", ErrorCode::Corrupt);
      if (stage != 3) {
        return put(root_, param.name, entry_of(*value, model, param.name));
      }
      parts.push_back(flat_tensor(*value, model, param.name));
      const uint64_t own = std::min(parts.back().shape[0], count - first);
      if (own > 0) param.parts.push_back({parts.size() - 1, 0, 0, first, own});
      first += own;
    }
    if (parts.empty()) return;
    put(root_, param.name, tensor_of_parts(param, parts[0].dtype, [&](const FlatPart& part) {
          return &parts[part.rank];
        }));
  }

  // --- the optimizer ---

  void add_optimizer(const RankDocument& first, const RankDocument& model) {
    const auto state = files_.base_state(first);
    if (!state) {
      files_.refuse(first.name, "base_optimizer_state",
                    "is of an elastic checkpoint, whose optimizer state is not read");
    }
    const std::vector<int64_t> numbers = files_.param_numbers(first);
    if (numbers.size() != group_count_) {
      files_.refuse(first.name, "param_groups", "does not fit the flat groups");
    }
    const NodeId optimizer = tree().dict(), states = tree().dict();
    for (const FlatParam& param : params_) {
      const NodeId own = tree().dict();
      for (const std::string& name : state_names(*state)) add_state(numbers, name, param, own);
      tree().put(states, param.name, own);
    }
    tree().put(optimizer, "state", states);
    add_groups(optimizer, files_.param_groups(first), first, model);
    tree().put(root_, "optimizer", optimizer);
  }

  static std::vector<std::string> state_names(const Value& state) {
    std::vector<std::string> names;
    for (const auto& [number, of_group] : items_of(state)) {
      if (!of_group.is(Kind::Dict)) continue;
      for (const auto& [key, value] : items_of(of_group)) {
        const std::string name = key_text(key);
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
      }
    }
    return names;
  }

  std::optional<Value> state_of(size_t rank, int64_t number, const std::string& name) const {
    const RankDocument& file = optimizers_[rank];
    const auto state = file.document ? files_.base_state(file) : std::nullopt;
    const auto of_group = state ? state->find(number) : std::nullopt;
    return of_group && of_group->is(Kind::Dict) ? of_group->find(name) : std::nullopt;
  }

  // A flat tensor of the partition's length is cut as the parameters are; all else is of each.
  void add_state(const std::vector<int64_t>& numbers, const std::string& name,
                 const FlatParam& param, NodeId states) {
    if (param.parts.empty()) return;
    const FlatPart& at = param.parts.front();
    const auto first = state_of(at.rank, numbers[at.group], name);
    if (!first) return;
    const auto view = as_tensor(*first);
    if (!view || view->shape.empty()) {
      return tree().put(states, name, carry(*first, optimizers_[at.rank]));
    }
    std::map<std::pair<size_t, size_t>, TensorEntry> flat;
    for (const FlatPart& part : param.parts) {
      const RankDocument& file = optimizers_[part.rank];
      const auto value = state_of(part.rank, numbers[part.group], name);
      if (!value) continue;
      TensorEntry tensor = flat_tensor(*value, file, name);
      const bool fits =
          tensor.shape[0] >= flat_[part.rank][part.group].shape[0] && tensor.dtype == view->dtype;
      if (!fits) files_.refuse(file.name, name, "is not of the length of its partition");
      flat.insert_or_assign({part.rank, part.group}, std::move(tensor));
    }
    put(states, name, tensor_of_parts(param, view->dtype, [&](const FlatPart& part) {
          const auto found = flat.find({part.rank, part.group});
          return found == flat.end() ? nullptr : &found->second;
        }));
  }

  // --- universal: a folder for each parameter ---

  void read_universal() {
    files_.contents().joined_words = "DeepSpeed universal checkpoint";
    const RankDocument model = files_.open(files_.has(DeepSpeedFiles::kWholeModel)
                                               ? std::string(DeepSpeedFiles::kWholeModel)
                                               : "zero_pp_rank_0_mp_rank_00_model_states.pt");
    const std::string folder(DeepSpeedFiles::kUniversal);
    const RankDocument common = files_.open(folder + "/optimizer_state.pt");
    files_.refuse_incomplete_unless_allowed();
    if (model.document == nullptr) return;
    const NodeId optimizer = tree().dict(), states = tree().dict();
    add_buffers(model);
    add_frozen({model}, 1);
    std::set<std::string> known = {"optimizer_state.pt"};
    for (const auto& group : files_.shapes(model, nullptr)) {
      for (const NamedShape& named : group) {
        known.insert(named.name);
        add_universal(folder + "/" + named.name, named, states);
      }
    }
    for (const std::string& name : files_.list(folder)) {
      if (known.contains(name) || tree().value(root_).find(name)) continue;  // a buffer
      files_.refuse(folder + "/" + name, "",
                    "is of a parameter whose shape the model does not say");
    }
    files_.refuse_incomplete_unless_allowed();
    add_shared(model);
    tree().put(optimizer, "state", states);
    if (common.document != nullptr) add_groups(optimizer, universal_groups(common), common, model);
    tree().put(root_, "optimizer", optimizer);
    add_rest(model, nullptr);
  }

  static std::optional<Value> universal_groups(const RankDocument& common) {
    if (!common.root().is(Kind::Dict)) return std::nullopt;
    if (const auto groups = common.root().find("param_groups")) return groups;
    const auto base = common.root().find("optimizer_state_dict");
    return base && base->is(Kind::Dict) ? base->find("param_groups") : std::nullopt;
  }

  void add_universal(const std::string& folder, const NamedShape& named, NodeId states) {
    const NodeId own = tree().dict();
    std::vector<std::string> names = files_.list(folder);
    if (std::ranges::find(names, "fp32.pt") == names.end()) names.emplace_back("fp32.pt");
    for (const std::string& name : names) {
      if (!name.ends_with(".pt")) continue;
      const RankDocument file = files_.open(folder + "/" + name);
      if (file.document == nullptr) continue;
      const std::string state = name.substr(0, name.size() - 3);
      const auto param =
          file.root().is(Kind::Dict) ? file.root().find("param") : std::optional(file.root());
      const auto view = param ? as_tensor(*param) : std::nullopt;
      const bool is_whole =
          view && !view->shape.empty() && element_count(view->shape) == element_count(named.shape);
      if (state == "fp32" && !is_whole) {
        files_.refuse(file.name, state, "does not have the shape that the model says",
                      ErrorCode::Corrupt);
      }
      if (!is_whole) {
        tree().put(own, state, carry(param.value_or(file.root()), file));
        continue;
      }
      TensorEntry entry = entry_of(*param, file, state);
      if (entry.chunks.at(0).view) files_.refuse(file.name, state, "is not contiguous");
      entry.shape = named.shape;
      entry.chunks[0].box = whole(named.shape);
      put(state == "fp32" ? root_ : own, state == "fp32" ? named.name : state, std::move(entry));
    }
    if (tree().value(own).item_count() != 0) tree().put(states, named.name, own);
  }

  std::vector<RankDocument> optimizers_;        // by rank
  std::vector<std::vector<TensorEntry>> flat_;  // fp32, by rank, then by group
  size_t group_count_ = 0;
  std::vector<FlatParam> params_;
};

}  // namespace

std::optional<std::string> deepspeed_tag(const Folder& source, const std::filesystem::path& root) {
  const std::string name = "latest";
  if (source.kind_of(root / name) != EntryKind::File) return std::nullopt;
  const auto file = source.open(root, {name, name, Links::StayInside});
  std::string tag = head_of(*file, kTagBytesMax);
  tag.resize(tag.find_last_not_of(" \r\n") + 1);
  const bool is_plain = !tag.empty() &&
                        tag.find_first_of(std::string_view("/\\\0", 3)) == tag.npos &&
                        tag != ".." && tag != ".";
  return is_plain ? std::optional(tag) : std::nullopt;
}

bool find_deepspeed_folder(const Folder& source, Location& location) {
  if (holds_deepspeed(source, location.folder)) return true;
  const auto tag = deepspeed_tag(source, location.folder);
  if (!tag || source.kind_of(location.folder / *tag) != EntryKind::Folder) return false;
  if (!holds_deepspeed(source, location.folder / *tag)) return false;
  location.folder /= *tag;
  return true;
}

Contents read_deepspeed(const Location& location, const Limits& limits) {
  Contents contents;
  DeepSpeedReader(location, limits, contents).run();
  return contents;
}

}  // namespace ckpt
