#include "parallel/stages.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <ckpt/error.h>

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

void require_stages(const char* what, size_t stages, const PipelineSplit& split) {
  const uint64_t expected = uint64_t{split.pipeline_parallel} * split.chunks_per_stage;
  if (stages == expected) return;
  refuse(std::string(what) + " has " + counted(stages, "stages") + ", but " +
         std::to_string(split.pipeline_parallel) + " pipeline stages of " +
         counted(split.chunks_per_stage, "chunks") + " need " + std::to_string(expected));
}

std::vector<ChunkLayers> layers_by_layout(const PipelineSplit& split) {
  const auto stages = parse_pipeline_layout(split.pipeline_model_parallel_layout);
  require_stages("the pipeline layout", stages.size(), split);
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

std::vector<ChunkLayers> layers_by_pattern(const PipelineSplit& split) {
  std::vector<ChunkLayers> chunks;
  for (const uint32_t layers : parse_hybrid_pattern(split.hybrid_layer_pattern).stages) {
    chunks.push_back({layers});
  }
  require_stages("the hybrid layer pattern", chunks.size(), split);
  chunks.back().mtp = split.mtp_num_layers;
  return chunks;
}

constexpr size_t kTextMax = size_t{1} << 20;

[[noreturn]] void refuse_layout(std::string_view text, const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}},
                    "the pipeline layout '" + std::string(text.substr(0, 200)) + "' " + problem);
}

struct Repeat {
  uint64_t count = 0;
  size_t end = 0;  // behind the number
};

// "*N" at `at`.
std::optional<Repeat> repeat_at(std::string_view text, size_t at) {
  if (at >= text.size() || text[at] != '*') return std::nullopt;
  uint64_t count = 0;
  const char* const first = text.data() + at + 1;
  const auto [end, error] = std::from_chars(first, text.data() + text.size(), count);
  if (error != std::errc() || end == first) return std::nullopt;
  return Repeat{count, static_cast<size_t>(end - text.data())};
}

void append(std::string& unrolled, std::string_view part, uint64_t count, std::string_view whole) {
  if (!part.empty() && count > (kTextMax - unrolled.size()) / part.size()) {
    refuse_layout(whole, "has more than 2^20 layers and stages");
  }
  for (uint64_t i = 0; i < count; ++i) unrolled += part;
}

// (text)*n; parentheses of another kind stay, and are refused as unknown characters.
std::string unroll_groups(std::string_view text) {
  std::string unrolled;
  for (size_t at = 0; at < text.size();) {
    const size_t close = text[at] == '(' ? text.find(')', at) : text.npos;
    const auto repeat = close == text.npos ? std::nullopt : repeat_at(text, close + 1);
    const std::string_view inside =
        repeat ? text.substr(at + 1, close - at - 1) : text.substr(at, 1);
    append(unrolled, inside, repeat ? repeat->count : 1, text);
    at = repeat ? repeat->end : at + 1;
  }
  return unrolled;
}

std::string unroll_characters(std::string_view text) {
  std::string unrolled;
  for (size_t at = 0; at < text.size();) {
    const auto repeat = repeat_at(text, at + 1);
    append(unrolled, text.substr(at, 1), repeat ? repeat->count : 1, text);
    at = repeat ? repeat->end : at + 1;
  }
  return unrolled;
}

std::vector<StageLayers> read_stages(std::string_view unrolled, std::string_view text) {
  std::vector<StageLayers> stages(1);
  bool in_mtp = false;
  for (const char c : unrolled) {
    StageLayers& stage = stages.back();
    if (c == 't' && in_mtp) refuse_layout(text, "has a decoder layer (t) behind an MTP layer (m)");
    in_mtp = in_mtp || c == 'm';
    switch (c) {
      case 'E': ++stage.embeddings; break;
      case 't': ++stage.decoder_layers; break;
      case 'm': ++stage.mtp_layers; break;
      case 'L': ++stage.losses; break;
      case '|': stages.emplace_back(); break;
      default:
        refuse_layout(text, "has a character other than E, t, m, L, |, ',' and repeats (...)*N");
    }
  }
  return stages;
}

void check_ends(std::string_view unrolled, std::string_view text) {
  if (!unrolled.starts_with('E') || std::ranges::count(unrolled, 'E') != 1) {
    refuse_layout(text, "must begin with its only embedding (E)");
  }
  if (!unrolled.ends_with('L') || std::ranges::count(unrolled, 'L') != 1) {
    refuse_layout(text, "must end with its only loss (L)");
  }
}

}  // namespace

std::vector<ModelChunk> model_chunks(const PipelineSplit& split) {
  check_sizes(split);
  const bool has_layout = !split.pipeline_model_parallel_layout.empty();
  const std::vector<ChunkLayers> layers = has_layout ? layers_by_layout(split)
                                          : has_stages(split.hybrid_layer_pattern)
                                              ? layers_by_pattern(split)
                                              : layers_by_rule(split);
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

std::vector<StageLayers> parse_pipeline_layout(std::string_view text) {
  if (text.size() > kTextMax) refuse_layout(text, "is longer than 2^20 characters");
  std::string without_commas(text);
  std::erase(without_commas, ',');
  const std::string unrolled = unroll_characters(unroll_groups(without_commas));
  std::vector<StageLayers> stages = read_stages(unrolled, text);
  check_ends(unrolled, text);
  return stages;
}

HybridPattern parse_hybrid_pattern(std::string_view text) {
  const size_t end = std::min(text.find('/'), text.size());
  HybridPattern pattern{{0}, {}, std::string(text.substr(end))};
  for (const char c : text.substr(0, end)) {
    if (c == '|') {
      pattern.stages.push_back(0);
    } else {
      ++pattern.stages.back();
      pattern.kinds += c;
    }
  }
  return pattern;
}

std::string pattern_for(const HybridPattern& pattern, const std::vector<ModelChunk>& chunks) {
  std::string text;
  for (const ModelChunk& chunk : chunks) {
    text += (&chunk == chunks.data() ? "" : "|") +
            pattern.kinds.substr(chunk.layers.first, chunk.layers.count);
  }
  return text + pattern.behind;
}

std::string layout_of(const HybridPattern& pattern, uint32_t mtp_layers) {
  std::string text;
  for (const uint32_t layers : pattern.stages) {
    text += (text.empty() ? "E" : "|") + std::string(layers, 't');
  }
  return text + std::string(mtp_layers, 'm') + "L";
}

}  // namespace optim
