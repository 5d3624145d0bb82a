// Rows of gate and up: what args say of them, and whether ranks can share them.
#include "grid/glu_rows.h"

#include <algorithm>
#include <array>

#include <ckpt/error.h>

#include "grid/placement.h"
#include "model/tensor_names.h"
#include "parallel/rank_grid.h"

namespace optim {
namespace {

using Order = GluRows::Order;

// Of modules with one name: which of the facts counts, and who reads it.
struct GluModule {
  std::string_view prefix;  // of a rule's name
  GluBlocks ModelFacts::*blocks;
  std::string_view argument;
  bool is_read;  // by this module, whatever else args say
  std::string_view unread;
};
constexpr std::string_view kExperts = "moe_mlp_glu_interleave_size";
constexpr std::array kModules = {
    GluModule{"mlp.experts.linear_fc1.", &ModelFacts::glu_of_experts, kExperts, true, ""},
    GluModule{"mlp.experts.local_experts.", &ModelFacts::glu_of_experts, kExperts, false,
              "Megatron-Core reads it for grouped experts alone (moe_grouped_gemm)"},
    GluModule{"mlp.shared_experts.linear_fc1.", &ModelFacts::glu_of_shared_experts,
              "moe_shared_expert_glu_interleave_size", true,
              "Megatron-Core reads it with use_grouped_gemm_for_shared_expert alone"},
    GluModule{"mlp.linear_fc1.", &ModelFacts::glu_of_dense_layers, "use_grouped_gemm_for_dense_mlp",
              true,
              "its kernel takes gate and up in alternating blocks on one tensor-parallel rank, and "
              "in halves on more"},
};

bool states_blocks(const ModelFacts& facts) {
  return std::ranges::any_of(
      kModules, [&](const GluModule& module) { return (facts.*module.blocks).rows != 0; });
}

struct RanksOfParam {
  uint32_t before, after;
  std::string_view option;
};
RanksOfParam ranks_of(const std::string& name, const RunGrid& before, const RunGrid& after) {
  const bool is_expert = expert_in(name).has_value();
  return {tensor_ranks(before.sizes, is_expert), tensor_ranks(after.sizes, is_expert),
          is_expert ? "--etp " : "--tp "};
}

bool are_pairs(uint64_t rows, uint32_t ranks, uint32_t block) {
  return rows % (uint64_t{2} * block * ranks) == 0;
}

[[noreturn]] void refuse_cut(const std::string& name, const GluRows& rows,
                             const RanksOfParam& ranks, const std::string& problem) {
  throw ckpt::Error(
      ckpt::ErrorCode::Unsupported, {.file = {}, .key = name},
      std::string(ranks.option) + std::to_string(ranks.after) + ": args." +
          std::string(rows.argument) + problem,
      std::string(ranks.option) + std::to_string(ranks.before) + " leaves these rows as they are");
}

void require_cut(const TrainedParam& param, const GluRows& rows, const RanksOfParam& ranks) {
  const std::string& name = param.info.name;
  if (rows.order == Order::Unclear) {
    refuse_cut(name, rows, ranks,
               " is set, but " + std::string(rows.unread) +
                   ": how rows of gate and up stand is not known, so they cannot be shared anew");
  }
  const uint64_t all = param.weight->shape.empty() ? 0 : param.weight->shape[0];
  for (const uint32_t count : {ranks.before, ranks.after}) {
    if (are_pairs(all, count, rows.block)) continue;
    refuse_cut(name, rows, ranks,
               " is " + std::to_string(rows.block) + ": " + std::to_string(all) + " rows on " +
                   std::to_string(count) + " ranks cannot be whole pairs of blocks of gate and up");
  }
}

// Rows of linear_fc1 against columns of linear_fc2.
constexpr std::string_view kFirst = ".linear_fc1.weight", kSecond = ".linear_fc2.weight";
constexpr std::string_view kFirstModule = ".linear_fc1.";

// "vision_model.decoder.layers.0.mlp.linear_fc1.weight": "vision_model."; of what is in no layer,
// as a projector's: all that is before linear_fc1.
std::string_view submodel_of(std::string_view first) {
  const size_t layers = first.find("layers.");
  if (layers == 0 || (layers != first.npos && first[layers - 1] == '.')) {
    const std::string_view before = first.substr(0, layers == 0 ? 0 : layers - 1);
    return before.substr(0, before.rfind('.') + 1);
  }
  return first.substr(0, first.find(kFirstModule));
}

}  // namespace

GluRows glu_rows(const TrainingState& state, const std::string& name) {
  const ModelFacts& facts = state.facts;
  if (!states_blocks(facts) || !is_gated(state, name)) return {};
  const auto found = rules_of(state).find(name);
  if (!found || found->rule->split != SplitKind::GatedRows) return {};
  const auto module = std::ranges::find_if(
      kModules, [&](const GluModule& one) { return found->rule->name.starts_with(one.prefix); });
  if (module == kModules.end()) return {};
  const GluBlocks& stated = facts.*module->blocks;
  if (stated.rows == 0) return {};
  const bool is_read = module->is_read && stated.are_read;
  return {is_read ? Order::Blocks : Order::Unclear, stated.rows, module->argument, module->unread};
}

void require_cuts_between_blocks(const TrainingState& source, const RunGrid& grid) {
  if (!states_blocks(source.facts)) return;
  for (const TrainedParam& param : source.params) {
    const GluRows rows = glu_rows(source, param.info.name);
    if (rows.order == Order::Halves) continue;
    const RanksOfParam ranks = ranks_of(param.info.name, source.grid, grid);
    if (ranks.before != ranks.after) require_cut(param, rows, ranks);
  }
}

bool cuts_blocks_anew(const TrainingState& source, const RunGrid& grid) {
  return states_blocks(source.facts) &&
         std::ranges::any_of(source.params, [&](const TrainedParam& param) {
           const RanksOfParam ranks = ranks_of(param.info.name, source.grid, grid);
           return ranks.before != ranks.after && is_in_blocks(source, param.info.name);
         });
}

std::vector<std::string> blocks_in_words(const TrainingState& state) {
  std::vector<std::string> lines;
  if (!states_blocks(state.facts)) return lines;
  std::vector<std::string_view> told;
  for (const TrainedParam& param : state.params) {
    const GluRows rows = glu_rows(state, param.info.name);
    if (rows.order != Order::Blocks || std::ranges::count(told, rows.argument) != 0) continue;
    told.push_back(rows.argument);
    lines.push_back("rows of gate and up alternate in blocks of " + std::to_string(rows.block) +
                    " (" + std::string(rows.argument) + "), as '" + ckpt::escaped(param.info.name) +
                    "' has them; they are kept so, and cut between pairs of blocks");
  }
  return lines;
}

std::optional<UnevenBlocks> find_uneven_blocks(const TrainingState& state) {
  if (!states_blocks(state.facts)) return std::nullopt;
  for (const TrainedParam& param : state.params) {
    const GluRows rows = glu_rows(state, param.info.name);
    if (rows.order != Order::Blocks || !param.weight || param.weight->shape.empty()) continue;
    const uint64_t all = param.weight->shape[0];
    const uint32_t ranks = ranks_of(param.info.name, state.grid, state.grid).before;
    if (are_pairs(all, ranks, rows.block)) continue;
    return UnevenBlocks{std::string(rows.argument), rows.block,
                        param.info.name + " has " + std::to_string(all / ranks) +
                            " rows on each rank, which cannot be whole pairs of such blocks"};
  }
  return std::nullopt;
}

void GatingByShapes::add(const std::string& name, const ckpt::Extents& shape) {
  if (shape.size() < 2) return;
  const auto pair_of = [this](const std::string& first) -> Pair& {
    return submodels_[std::string(submodel_of(first))][first];
  };
  if (name.find(kFirst) != name.npos) {
    pair_of(name).first_rows = shape[shape.size() - 2];
  } else if (const size_t at = name.find(kSecond); at != name.npos) {
    pair_of(std::string(name).replace(at, kSecond.size(), kFirst)).second_columns = shape.back();
  }
}

const GatingByShapes::Pairs* GatingByShapes::of_language_model() const {
  for (const char* name : {"", "language_model."}) {
    if (const auto found = submodels_.find(name); found != submodels_.end()) return &found->second;
  }
  return submodels_.size() == 1 ? &submodels_.begin()->second : nullptr;
}

std::optional<bool> GatingByShapes::is_gated() const {
  const Pairs* const pairs = of_language_model();
  return pairs == nullptr ? std::nullopt : is_gated(*pairs);
}

std::map<std::string, bool> GatingByShapes::of_submodels() const {
  const Pairs* const language = of_language_model();
  std::map<std::string, bool> gating;
  for (const auto& [name, pairs] : submodels_) {
    const auto own = &pairs == language ? std::nullopt : is_gated(pairs);
    if (own) gating.emplace(name, *own);
  }
  return gating;
}

std::optional<bool> GatingByShapes::is_gated(const Pairs& pairs) {
  const std::string *gated = nullptr, *plain = nullptr;  // the first of each, by name
  for (const auto& [name, pair] : pairs) {
    const auto& [rows, columns] = pair;
    if (rows == 0 || columns == 0 || (rows != columns && rows != 2 * columns)) continue;
    const std::string*& first = rows == columns ? plain : gated;
    if (first == nullptr || name < *first) first = &name;
  }
  if (gated != nullptr && plain != nullptr) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = *gated},
                      "is a gated linear unit's, but '" + ckpt::escaped(*plain) +
                          "' is not; models that have both are not supported");
  }
  if (gated == nullptr && plain == nullptr) return std::nullopt;
  return gated != nullptr;
}

bool is_gated(const TrainingState& state, const std::string& name) {
  const ModelFacts& facts = state.facts;
  if (facts.gating.empty()) return facts.gated_linear_unit;
  const auto own = facts.gating.find(std::string(submodel_of(name)));
  return own == facts.gating.end() ? facts.gated_linear_unit : own->second;
}

void ask_for_gating(TrainingState& state) {
  GatingByShapes shapes;
  for (const TrainedParam& param : state.params) shapes.add(param.info.name, param.weight->shape);
  if (const auto is_gated = shapes.is_gated()) state.facts.gated_linear_unit = *is_gated;
  state.facts.gating = shapes.of_submodels();
}

}  // namespace optim
