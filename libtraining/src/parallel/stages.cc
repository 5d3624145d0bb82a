#include "parallel/stages.h"

#include <utility>

#include <ckpt/error.h>

#include "parallel/pipeline_layout.h"
#include "sharding/refuse.h"

namespace optim {
namespace {

constexpr uint64_t kChunksMax = uint64_t{1} << 20;

std::string counted(uint64_t count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what);
}

void check_sizes(const PipelineSplit& split) {
  if (split.pipeline_parallel == 0 || split.chunks_per_stage == 0) {
    refuse("pipeline and virtual pipeline parallel sizes must be at least 1");
  }
  if (split.chunks_per_stage > 1 && split.pipeline_parallel == 1) {
    refuse("a virtual pipeline parallel size of " + std::to_string(split.chunks_per_stage) +
           " needs a pipeline parallel size above 1");
  }
  if (uint64_t{split.pipeline_parallel} * split.chunks_per_stage > kChunksMax) {
    refuse("more than 2^20 model chunks");
  }
}

uint32_t divided(uint64_t layers, uint32_t parts, std::string_view layers_are,
                 std::string_view parts_are) {
  if (layers % parts == 0) return static_cast<uint32_t>(layers / parts);
  refuse_arg_of_run("num_layers", counted(layers, layers_are) + " cannot be divided evenly over " +
                                      counted(parts, parts_are));
}

// Layers of each stage, where first and last ones are given: the rest evenly over the others.
std::vector<uint32_t> uneven_stages(const PipelineSplit& split) {
  const auto& first = split.num_layers_in_first_pipeline_stage;
  const auto& last = split.num_layers_in_last_pipeline_stage;
  if (split.account_for_embedding_in_pipeline_split || split.account_for_loss_in_pipeline_split) {
    refuse(
        "layers of the first or last pipeline stage cannot be combined with "
        "account_for_embedding_in_pipeline_split or account_for_loss_in_pipeline_split");
  }
  const uint64_t given = uint64_t{first.value_or(0)} + last.value_or(0);
  const uint32_t given_stages = (first ? 1 : 0) + (last ? 1 : 0);
  if (given > split.num_layers || given_stages > split.pipeline_parallel) {
    refuse("the first and last pipeline stage have " + counted(given, "layers") + ", the model " +
           counted(split.num_layers, "in ") + counted(split.pipeline_parallel, "stages"));
  }
  const uint64_t rest = split.num_layers - given;
  const uint32_t middle_stages = split.pipeline_parallel - given_stages;
  if (middle_stages == 0 && rest != 0) {
    refuse(counted(rest, "layers are in neither the first nor the last of the pipeline stages"));
  }
  const uint32_t each =
      middle_stages == 0 ? 0 : divided(rest, middle_stages, "other layers", "other stages");
  std::vector<uint32_t> stages(split.pipeline_parallel, each);
  if (first) stages.front() = *first;
  if (last) stages.back() = *last;
  return stages;
}

// The embedding and the loss each count as a layer where the arguments say so.
std::vector<uint32_t> even_stages(const PipelineSplit& split) {
  const uint64_t places = uint64_t{split.num_layers} +
                          (split.account_for_embedding_in_pipeline_split ? 1 : 0) +
                          (split.account_for_loss_in_pipeline_split ? 1 : 0);
  const uint32_t each =
      divided(places, split.pipeline_parallel, "layers", "pipeline parallel stages");
  return std::vector<uint32_t>(split.pipeline_parallel, each);
}

struct ChunkLayers {
  uint32_t decoder = 0, mtp = 0;
};

// [chunk * stages + stage]
std::vector<ChunkLayers> layers_by_rule(const PipelineSplit& split) {
  const bool uneven =
      split.num_layers_in_first_pipeline_stage || split.num_layers_in_last_pipeline_stage;
  const std::vector<uint32_t> stages = uneven ? uneven_stages(split) : even_stages(split);
  std::vector<ChunkLayers> chunks;
  for (uint32_t chunk = 0; chunk < split.chunks_per_stage; ++chunk) {
    for (const uint32_t layers : stages) {
      chunks.push_back({divided(layers, split.chunks_per_stage, "layers of a pipeline stage",
                                "model chunks per stage")});
    }
  }
  const auto take_one = [](uint32_t& layers, std::string_view what) {
    if (layers == 0) refuse("the pipeline stage of the " + std::string(what) + " has no place");
    --layers;
  };
  if (split.account_for_embedding_in_pipeline_split) take_one(chunks.front().decoder, "embedding");
  if (split.account_for_loss_in_pipeline_split) take_one(chunks.back().decoder, "loss");
  chunks.back().mtp = split.mtp_num_layers;
  return chunks;
}

std::vector<ChunkLayers> layers_by_layout(const PipelineSplit& split) {
  const auto stages = parse_pipeline_layout(split.pipeline_model_parallel_layout);
  const uint64_t expected = uint64_t{split.pipeline_parallel} * split.chunks_per_stage;
  if (stages.size() != expected) {
    refuse("the pipeline layout has " + counted(stages.size(), "stages") + ", but " +
           std::to_string(split.pipeline_parallel) + " pipeline stages of " +
           counted(split.chunks_per_stage, "chunks") + " need " + std::to_string(expected));
  }
  std::vector<ChunkLayers> chunks;
  uint64_t decoder = 0, mtp = 0;
  for (const StageLayers& stage : stages) {
    chunks.push_back({stage.decoder_layers, stage.mtp_layers});
    decoder += stage.decoder_layers;
    mtp += stage.mtp_layers;
  }
  if (decoder != split.num_layers || mtp != split.mtp_num_layers) {
    refuse("the pipeline layout has " + counted(decoder, "decoder and ") +
           counted(mtp, "MTP layers, the model ") + std::to_string(split.num_layers) + " and " +
           std::to_string(split.mtp_num_layers));
  }
  return chunks;
}

}  // namespace

std::vector<ModelChunk> model_chunks(const PipelineSplit& split) {
  check_sizes(split);
  const bool has_layout = !split.pipeline_model_parallel_layout.empty();
  const std::vector<ChunkLayers> layers =
      has_layout ? layers_by_layout(split) : layers_by_rule(split);
  std::vector<ModelChunk> chunks;
  LayerRange decoder, mtp;
  for (const ChunkLayers& here : layers) {
    const auto place = static_cast<uint32_t>(chunks.size());
    decoder.count = here.decoder;
    mtp.count = here.mtp;
    chunks.push_back({.stage = place % split.pipeline_parallel,
                      .chunk = place / split.pipeline_parallel,
                      .layers = decoder,
                      .mtp_layers = mtp});
    decoder.first += here.decoder;
    mtp.first += here.mtp;
  }
  chunks.front().has_embedding = true;
  chunks.back().has_output = true;
  return chunks;
}

std::vector<size_t> chunks_with_word_embeddings(const std::vector<ModelChunk>& chunks,
                                                bool output_is_tied) {
  std::vector<size_t> with;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ModelChunk& chunk = chunks[i];
    const bool is_copy = (output_is_tied && chunk.has_output) || chunk.mtp_layers.count > 0;
    if (chunk.has_embedding || is_copy) with.push_back(i);
  }
  return with;
}

}  // namespace optim
