#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <optim/ownership.h>
#include <nlohmann/json.hpp>

#include "model/tensor_names.h"
#include "parallel/rank_grid.h"
#include "parallel/stages.h"
#include "sharding/flat_layout.h"

// What the ranks of real Megatron-Core runs held (tests/golden/parallel/distil.py); a folder with
// more of them is taken from SHARDWISE_RECORDED_RANKS.
struct RecordedRanks {
  nlohmann::json json;

  std::string name() const { return json["name"]; }
  bool is_august() const { return json["era"] == "head"; }
  bool has_distributed_optimizer() const {
    return json["optimizer"] == "DistributedOptimizer" || is_august();
  }
  // Of core 0.20-dev the buffer of the matrices that Muon steps.
  bool is_layer_wise_of_august(const nlohmann::json& buffer) const {
    const std::string first = buffer["params"][0][0];
    return is_august() && json["optimizer"] != "DistributedOptimizer" &&
           first.find("linear") != first.npos && first.ends_with("weight");
  }
  std::optional<uint64_t> bucket_size() const {
    const auto& size = json["bucket_size"];
    return size.is_null() ? std::nullopt : std::optional(size.get<uint64_t>());
  }
  uint32_t size(const char* axis) const {
    const auto& value = json["sizes"][axis];
    return value.is_null() ? 1 : value.get<uint32_t>();
  }
  optim::ParallelSizes sizes() const {
    return {.data_parallel = size("dp"),
            .context_parallel = size("cp"),
            .tensor_parallel = size("tp"),
            .pipeline_parallel = size("pp"),
            .virtual_pipeline_parallel = size("vpp"),
            .expert_parallel = size("ep"),
            .expert_tensor_parallel = json["sizes"]["etp"].is_null() ? size("tp") : size("etp")};
  }
  uint32_t model(const char* field) const { return json["model"].value(field, 0u); }
  bool is_tied() const { return !json["model"]["untied"].get<bool>(); }
  optim::PipelineSplit pipeline() const {
    return {.num_layers = model("layers"),
            .pipeline_parallel = size("pp"),
            .chunks_per_stage = size("vpp")};
  }
  const nlohmann::json& params_of(const nlohmann::json& rank) const {
    return json["params"][rank["params"].get<size_t>()];
  }
  const nlohmann::json& buffers_of(const nlohmann::json& rank) const {
    return json["buffers"][rank["buffers"].get<size_t>()];
  }
  // What a rank holds of the model in one of its chunks.
  optim::RankPart part(const optim::RankCoordinates& rank, uint32_t chunk) const {
    const auto chunks = optim::model_chunks(pipeline());
    return {chunks.at(chunk * size("pp") + rank.pp),
            optim::experts_on(model("experts"), rank.ep, size("ep")), is_tied()};
  }
};

inline std::vector<RecordedRanks> recorded_ranks() {
  const char* const more = std::getenv("SHARDWISE_RECORDED_RANKS");
  std::vector<RecordedRanks> all;
  const std::string folder = more ? more : SHARDWISE_GOLDEN_DIR "/parallel";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".json") continue;
    std::ifstream stream(file.path());
    all.push_back({nlohmann::json::parse(stream)});
  }
  return all;
}
