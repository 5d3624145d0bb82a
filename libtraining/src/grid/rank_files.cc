// Names of rank files.
#include "grid/rank_files.h"

#include <algorithm>
#include <map>
#include <set>

namespace optim {
namespace {

std::string padded(uint32_t number, size_t digits) {
  const std::string text = std::to_string(number);
  return std::string(digits - std::min(digits, text.size()), '0') + text;
}

std::string folder_of(const RankCoordinates& at, const ParallelSizes& sizes) {
  std::string name = "mp_rank_" + padded(at.tp, 2);
  if (sizes.pipeline_parallel > 1) name += "_" + padded(at.pp, 3);
  if (sizes.expert_parallel > 1) name += "_" + padded(at.ep, 3);
  return name + "/";
}

// Where the experts' tensor parallelism is below the dense one, ranks of several folders share
// experts: of such a folder the first of the ranks that share its other parameters writes.
void add_writers_since_core_019(std::vector<WorldRank>& ranks) {
  std::set<std::string> written;
  for (const WorldRank& rank : ranks) {
    if (rank.writes_model) written.insert(rank.folder);
  }
  for (WorldRank& rank : ranks) {
    if (rank.at.dp != 0 || !written.insert(rank.folder).second) continue;
    rank.writes_model = rank.writes_since_core_019 = true;
  }
}

}  // namespace

bool may_write_model(const RankCoordinates& at) { return at.edp == 0 || at.dp == 0; }

std::string model_key(const PipelineSplit& split, size_t chunk) {
  return split.chunks_per_stage == 1 ? "model" : "model" + std::to_string(chunk);
}

std::vector<WorldRank> ranks_of(const RunGrid& grid) {
  const RankGrid ranks(grid.sizes, grid.rank_order);
  std::vector<WorldRank> all;
  for (uint64_t rank = 0; rank < ranks.rank_count(); ++rank) {
    const RankCoordinates at = ranks.at(rank);
    all.push_back({static_cast<uint32_t>(rank), at, folder_of(at, grid.sizes), at.edp == 0});
  }
  add_writers_since_core_019(all);
  return all;
}

std::string loss_in_rank_files(const std::vector<WorldRank>& ranks, RankFilesOf which) {
  std::map<std::string, uint32_t> writers;
  std::set<std::string> with_model;
  for (const WorldRank& rank : ranks) {
    std::vector<std::string> files;
    const bool writes =
        rank.writes_model && !(which.is_before_core_019 && rank.writes_since_core_019);
    if (writes) files.push_back(rank.model_file());
    if (which.is_layer_wise) files.push_back(rank.optimizer_file());
    for (const std::string& file : files) {
      const auto [known, is_first] = writers.emplace(file, rank.rank);
      if (is_first) continue;
      return "ranks " + std::to_string(known->second) + " and " + std::to_string(rank.rank) +
             " both write " + file;
    }
    if (writes) with_model.insert(rank.folder);
  }
  for (const WorldRank& rank : ranks) {
    if (!with_model.contains(rank.folder)) return "no rank writes " + rank.model_file();
  }
  return {};
}

}  // namespace optim
