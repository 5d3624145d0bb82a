#include "format/joined/deepspeed_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include <ckpt/flat_range.h>

#include "base/text.h"
#include "format/joined/joined_state.h"
#include "format/torch/torch_save.h"
#include "format/values/nesting.h"
#include "format/values/torch_values.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

struct Elements {
  uint64_t begin = 0, count = 0;
};

// What of `wanted` lies in a flat tensor, which is `there`; it starts with element at.first of the
// parameter.
void add_overlap(FlatPart at, Elements there, Elements wanted, FlatParam& param) {
  const uint64_t from = std::max(there.begin, wanted.begin);
  const uint64_t until = std::min(there.begin + there.count, wanted.begin + wanted.count);
  if (from >= until) return;
  at.offset = from - there.begin;
  at.first += from - wanted.begin;
  at.count = until - from;
  param.parts.push_back(at);
}

uint64_t each_of(uint64_t count, uint64_t ranks) { return count / ranks + (count % ranks != 0); }

using std::string_view;

constexpr string_view kRankMark = "zero_pp_rank_";
constexpr int64_t kPartitionsMax = 1 << 20;

// "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt": what stands before the rank, and the rank.
struct NameOfRank {
  std::string front;
  uint64_t rank = 0;
};
std::optional<NameOfRank> name_of_rank(string_view name, string_view suffix) {
  const size_t mark = name.find(kRankMark);
  if (mark == name.npos || !name.ends_with(suffix)) return std::nullopt;
  const size_t at = mark + kRankMark.size();
  if (name.size() < at + suffix.size()) return std::nullopt;
  const auto rank = number_in<uint64_t>(name.substr(at, name.size() - suffix.size() - at));
  return rank ? std::optional(NameOfRank{std::string(name.substr(0, at)), *rank}) : std::nullopt;
}

bool is_of_optimizer(string_view name) { return name.ends_with("_optim_states.pt"); }
bool is_of_states(string_view name) {
  return is_of_optimizer(name) || name.ends_with("_model_states.pt");
}

}  // namespace

std::vector<FlatParam> cut_groups(std::span<const std::vector<NamedShape>> groups,
                                  const FlatLengths& lengths) {
  std::vector<FlatParam> params;
  for (size_t group = 0; group < groups.size(); ++group) {
    uint64_t offset = 0;
    for (const NamedShape& named : groups[group]) {
      FlatParam param{named.name, named.shape, {}};
      const uint64_t count = element_count(named.shape);
      uint64_t begin = 0;
      for (size_t rank = 0; rank < lengths.size() && group < lengths[rank].size(); ++rank) {
        add_overlap({rank, group, 0, 0, 0}, {begin, lengths[rank][group]}, {offset, count}, param);
        begin += lengths[rank][group];
      }
      offset += count + named.padding;
      params.push_back(std::move(param));
    }
  }
  return params;
}

std::vector<FlatParam> cut_params(std::span<const std::vector<NamedShape>> groups,
                                  const FlatLengths& lengths) {
  std::vector<FlatParam> params;
  uint64_t offset = 0;
  for (const std::vector<NamedShape>& group : groups) {
    for (const NamedShape& named : group) {
      FlatParam param{named.name, named.shape, {}};
      const uint64_t count = element_count(named.shape), each = each_of(count, lengths.size());
      for (size_t rank = 0; rank < lengths.size(); ++rank) {
        const uint64_t first = std::min(count, rank * each);
        uint64_t begin = 0;
        for (size_t i = 0; i < lengths[rank].size(); ++i) {
          add_overlap({rank, i, 0, first, 0}, {begin, lengths[rank][i]},
                      {offset, std::min(each, count - first)}, param);
          begin += lengths[rank][i];
        }
      }
      offset += each;
      params.push_back(std::move(param));
    }
  }
  return params;
}

uint64_t count_of_group(const std::vector<NamedShape>& group) {
  uint64_t count = 0;
  for (const NamedShape& named : group) count += element_count(named.shape) + named.padding;
  return count;
}

uint64_t count_of_rank(std::span<const std::vector<NamedShape>> groups, uint64_t ranks) {
  uint64_t count = 0;
  for (const std::vector<NamedShape>& group : groups) {
    for (const NamedShape& named : group) count += each_of(element_count(named.shape), ranks);
  }
  return count;
}

TensorEntry tensor_of_parts(const FlatParam& param, DType dtype,
                            const std::function<const TensorEntry*(const FlatPart&)>& flat) {
  TensorEntry entry{{}, param.name, dtype, param.shape, {}};
  const uint64_t element_bytes = bytes_per_element(dtype);
  for (const FlatPart& part : param.parts) {
    const TensorEntry* const tensor = flat(part);
    if (tensor == nullptr) continue;
    const Chunk& chunk = tensor->chunks.at(0);
    uint64_t offset = chunk.payload_offset_bytes + part.offset * element_bytes;
    for (Box& box : boxes_of_flat_range(whole(param.shape), part.first, part.count)) {
      const uint64_t count = element_count(box.sizes);
      entry.chunks.push_back({std::move(box), chunk.region, offset});
      offset += count * element_bytes;
    }
  }
  return entry;
}

bool holds_deepspeed(const Folder& source, const std::filesystem::path& folder) {
  const std::vector<std::string> names = source.list(folder);
  const bool is_universal = std::ranges::find(names, DeepSpeedFiles::kUniversal) != names.end();
  return std::ranges::any_of(names, is_universal ? is_of_states : is_of_optimizer);
}

void DeepSpeedFiles::refuse(const std::string& file, const std::string& key, std::string problem,
                            ErrorCode code) const {
  const char* const hint =
      code == ErrorCode::Unsupported
          ? "its files open one by one; DeepSpeed's zero_to_fp32.py may write one state dict, "
            "which opens and converts"
          : "";
  throw Error(code, {file, std::nullopt, key}, std::move(problem), hint);
}

void DeepSpeedFiles::refuse_incomplete_unless_allowed() const {
  refuse_incomplete(contents_.catalog, limits_);
}

bool DeepSpeedFiles::has(string_view name) const {
  return location_.source->has(location_.folder / name);
}

std::vector<std::string> DeepSpeedFiles::list(const std::string& folder) const {
  const auto path = location_.folder / folder;
  if (location_.source->kind_of(path) != EntryKind::Folder) return {};
  return location_.source->list(path);
}

void DeepSpeedFiles::tell(const std::string& file, std::string lack) {
  set_lack(contents_.catalog, file, std::move(lack));
}

void DeepSpeedFiles::find_renamed() { find_renamed_files(location_, limits_, contents_.catalog); }

void DeepSpeedFiles::refuse_other_forms() const {
  for (const std::string& name : list("")) {
    if (name.find("_expert_") != name.npos && is_of_states(name)) {
      refuse(name, "", "holds an expert of a DeepSpeed MoE model, which is not read");
    }
    if (name.starts_with("layer_") && name.ends_with("-model_states.pt")) {
      refuse(name, "", "holds a layer of a DeepSpeed pipeline, which is not read");
    }
    const size_t mp = name.find("mp_rank_");
    if (!is_of_states(name) || mp == name.npos) continue;
    if (name.compare(mp, 11, "mp_rank_00_") != 0) {
      refuse(name, "", "is of a model-parallel rank of DeepSpeed, of which rank 0 alone is read");
    }
  }
}

// --- files ---

RankDocument DeepSpeedFiles::open(const std::string& name) {
  if (!is_missing(location_, name, contents_)) {
    try_torch_save_file({location_, name, name}, limits_, contents_);
  }
  const auto found = contents_.documents.find(name);
  return {name, found == contents_.documents.end() ? nullptr : &found->second};
}

std::vector<RankDocument> DeepSpeedFiles::open_ranks(string_view suffix,
                                                     std::optional<uint64_t> count) {
  std::map<uint64_t, RankDocument> opened;
  std::string front(kRankMark);
  for (const std::string& name : list("")) {
    const auto of_rank = name_of_rank(name, suffix);
    if (!of_rank) continue;
    if (opened.contains(of_rank->rank)) {
      refuse(name, "", "is a second file of rank " + std::to_string(of_rank->rank));
    }
    front = of_rank->front;
    const RankDocument file = opened.emplace(of_rank->rank, open(name)).first->second;
    if (!count && file.document != nullptr) count = partition_count(file);
  }
  if (!count && opened.empty()) return {};
  const uint64_t ranks = count.value_or(opened.empty() ? 1 : opened.rbegin()->first + 1);
  std::vector<RankDocument> files;
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    const auto found = opened.find(rank);
    files.push_back(found != opened.end()
                        ? found->second
                        : open(front + std::to_string(rank) + std::string(suffix)));
  }
  for (const auto& [rank, file] : opened) {
    if (rank >= ranks)
      tell(file.name, "is one too many: " + std::to_string(ranks) + " ranks saved");
  }
  return files;
}

// --- of an optimizer's file ---

Value DeepSpeedFiles::optimizer_state(const RankDocument& file) const {
  const auto state =
      file.root().is(Kind::Dict) ? file.root().find("optimizer_state_dict") : std::nullopt;
  if (!state || !state->is(Kind::Dict)) {
    refuse(file.name, "optimizer_state_dict", "is missing", ErrorCode::Corrupt);
  }
  return *state;
}

uint64_t DeepSpeedFiles::partition_count(const RankDocument& file) const {
  const auto value = optimizer_state(file).find("partition_count");
  int64_t count = value && value->is(Kind::Int) ? value->as_int() : 0;
  for (size_t i = 0; value && value->is(Kind::List) && i < value->size(); ++i) {
    if ((*value)[i].is(Kind::Int)) count = std::max(count, (*value)[i].as_int());
  }
  if (count < 1 || count > kPartitionsMax) {
    refuse(file.name, "partition_count", "is not a number of ranks", ErrorCode::Corrupt);
  }
  return static_cast<uint64_t>(count);
}

// A number, or a member of ZeroStageEnum: by its name, or by its value.
int DeepSpeedFiles::zero_stage(const RankDocument& file) const {
  constexpr std::array<string_view, 4> kNames = {"disabled", "optimizer_states", "gradients",
                                                 "weights"};
  auto value = optimizer_state(file).find("zero_stage");
  if (value && value->is(Kind::Object) && value->args().size() > 0) {
    value = value->args()[value->args().size() - 1];
  }
  for (int stage = 1; value && stage <= 3; ++stage) {
    const bool is_name = value->is(Kind::Str) && value->text() == kNames[stage];
    if (is_name || (value->is(Kind::Int) && value->as_int() == stage)) return stage;
  }
  refuse(file.name, "zero_stage", "is not a stage of ZeRO from 1 to 3");
}

std::optional<Value> DeepSpeedFiles::base_optimizer(const RankDocument& file) const {
  const Value state = optimizer_state(file);
  for (const char* name : {"base_optimizer_state", "optimizer_state_dict"}) {
    const auto base = state.find(name);
    if (base && base->is(Kind::Dict)) return base;
  }
  return std::nullopt;
}

std::optional<Value> DeepSpeedFiles::base_state(const RankDocument& file) const {
  const auto base = base_optimizer(file);
  const auto state = base ? base->find("state") : std::nullopt;
  return state && state->is(Kind::Dict) ? state : std::nullopt;
}

std::optional<Value> DeepSpeedFiles::param_groups(const RankDocument& file) const {
  const auto base = base_optimizer(file);
  const auto groups = base ? base->find("param_groups") : std::nullopt;
  return groups && groups->is(Kind::List) ? groups : std::nullopt;
}

std::vector<int64_t> DeepSpeedFiles::param_numbers(const RankDocument& file) const {
  std::vector<int64_t> numbers;
  const auto groups = param_groups(file);
  for (size_t i = 0; groups && i < groups->size(); ++i) {
    const auto params = (*groups)[i].is(Kind::Dict) ? (*groups)[i].find("params") : std::nullopt;
    for (size_t k = 0; params && params->is(Kind::List) && k < params->size(); ++k) {
      if ((*params)[k].is(Kind::Int)) numbers.push_back((*params)[k].as_int());
    }
  }
  return numbers;
}

// --- of a model's file ---

std::optional<Value> DeepSpeedFiles::in_model(const RankDocument& model, const char* name) const {
  return model.root().is(Kind::Dict) ? model.root().find(name) : std::nullopt;
}

uint64_t DeepSpeedFiles::padding_behind(const RankDocument& file, size_t group,
                                        size_t param) const {
  const auto all = optimizer_state(file).find("param_alignment_paddings");
  if (!all || !all->is(Kind::List)) return 0;
  const bool has_group = group < all->size() && (*all)[group].is(Kind::List);
  const bool has_param = has_group && param < (*all)[group].size() &&
                         (*all)[group][param].is(Kind::Int) && (*all)[group][param].as_int() >= 0;
  if (has_param) return static_cast<uint64_t>((*all)[group][param].as_int());
  refuse(file.name, "param_alignment_paddings", "does not fit param_shapes", ErrorCode::Corrupt);
}

std::vector<std::vector<NamedShape>> DeepSpeedFiles::shapes(const RankDocument& model,
                                                            const RankDocument* optimizer) const {
  const auto stated = in_model(model, "param_shapes");
  const auto refuse_it = [&]() {
    refuse(model.name, "param_shapes", "is not a list of shapes by name", ErrorCode::Corrupt);
  };
  if (!stated || !stated->is(Kind::List)) refuse_it();
  std::vector<std::vector<NamedShape>> groups(stated->size());
  for (size_t i = 0; i < stated->size(); ++i) {
    const auto mapping = as_mapping((*stated)[i]);
    if (!mapping) refuse_it();
    for (size_t k = 0; k < mapping->item_count(); ++k) {
      const auto [key, value] = mapping->item(k);
      const auto sizes = sizes_in(value);
      if (!sizes || !key.is(Kind::Str)) refuse_it();
      check_shape(*sizes);
      const uint64_t padding = optimizer == nullptr ? 0 : padding_behind(*optimizer, i, k);
      groups[i].push_back({std::string(key.text()), *sizes, padding});
    }
  }
  return groups;
}

// --- whether all are of one save ---

void DeepSpeedFiles::compare(const std::vector<RankDocument>& files, const std::string& name,
                             const std::function<std::optional<Value>(const RankDocument&)>& get) {
  const RankDocument* first = nullptr;
  std::string expected;
  for (const RankDocument& file : files) {
    if (file.document == nullptr) continue;
    const auto value = get(file);
    const std::string content =
        value ? content_of(*value, *file.document, nullptr).value_or("") : "";
    if (first == nullptr) std::tie(first, expected) = std::pair(&file, content);
    if (content == expected) continue;
    tell(file.name, "differs from " + first->name + " in '" + name +
                        "', which all ranks have alike: it is of another save");
  }
}

void DeepSpeedFiles::compare_optimizers(const std::vector<RankDocument>& files,
                                        const std::vector<int64_t>& param_numbers) {
  for (const char* name : {"partition_count", "ds_version", "zero_stage"}) {
    compare(files, name, [&](const RankDocument& one) { return optimizer_state(one).find(name); });
  }
  compare(files, "param_groups", [&](const RankDocument& one) { return param_groups(one); });
  for (const int64_t number : param_numbers) {
    compare(files, "step", [&](const RankDocument& one) {
      const auto state = base_state(one);
      const auto of_param = state ? state->find(number) : std::nullopt;
      return of_param && of_param->is(Kind::Dict) ? of_param->find("step") : std::nullopt;
    });
  }
}

void DeepSpeedFiles::compare_models(const std::vector<RankDocument>& files) {
  for (const char* name : {"param_shapes", "global_steps", "global_samples", "skipped_steps",
                           "dp_world_size", "buffer_names"}) {
    compare(files, name, [&](const RankDocument& one) { return in_model(one, name); });
  }
}

void DeepSpeedFiles::compare_mappings(const std::vector<RankDocument>& files,
                                      const std::vector<FlatParam>& params) {
  for (size_t rank = 0; rank < files.size(); ++rank) {
    if (files[rank].document == nullptr) continue;
    const auto mappings = optimizer_state(files[rank]).find("param_slice_mappings");
    std::set<std::string> stated, expected;
    for (size_t i = 0; mappings && mappings->is(Kind::List) && i < mappings->size(); ++i) {
      const auto mapping = as_mapping((*mappings)[i]);
      for (const auto& [key, address] : items_of(mapping)) {
        const auto start = attribute_of(address, "start"), count = attribute_of(address, "numel");
        if (!start || !count) continue;
        stated.insert(key_text(key) + " " + key_text(*start) + " " + key_text(*count));
      }
    }
    for (const FlatParam& param : params) {
      for (const FlatPart& part : param.parts) {
        if (part.rank != rank) continue;
        expected.insert(param.name + " " + std::to_string(part.offset) + " " +
                        std::to_string(part.count));
      }
    }
    if (stated.empty() || stated == expected) continue;
    tell(files[rank].name, "says that it has other parts of parameters than rank " +
                               std::to_string(rank) + " has: another rank saved it");
  }
}

}  // namespace ckpt
