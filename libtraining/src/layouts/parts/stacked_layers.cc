// Parts of what torch_dist stacks over layers and experts: tensors by their leading dimensions,
// objects by the numbers in their keys.
#include "layouts/parts/stacked_layers.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include <ckpt/printed.h>

#include "layouts/parts/store_errors.h"
#include "model/model_rules.h"
#include "state/words.h"

namespace optim {
namespace {

using store_errors::corrupt;

// "1.0": numbers joined by dots.
std::optional<std::vector<uint32_t>> numbers_of(std::string_view text) {
  std::vector<uint32_t> numbers;
  while (true) {
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end == text.data()) return std::nullopt;
    numbers.push_back(number);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.empty()) return numbers;
    if (text.front() != '.') return std::nullopt;
    text.remove_prefix(1);
  }
}

constexpr std::string_view kEncoder = "encoder.layers.";
constexpr std::string_view kLanguageDecoder = "language_model.decoder.layers.";
constexpr std::string_view kLanguageOutput = "language_model.output_layer.weight";
// More than a model has.
constexpr uint64_t kLayersMax = uint64_t{1} << 20;

// "optimizer.state.exp_avg.decoder.layers.0.mixer.A_log": where the parameter's key begins.
size_t begin_of_param(std::string_view key) {
  for (const std::string_view layers : {kLayersPrefix, kMtpLayersPrefix}) {
    const size_t found = key.find(layers);
    if (found == 0 || (found != key.npos && key[found - 1] == '.')) return found;
  }
  return key.npos;
}

struct Segments {
  size_t begin_of_param = 0;
  std::vector<size_t> tensors;  // of the catalog; [segment], npos: it has none
};

bool fit(const TensorEntry& a, const TensorEntry& b, size_t axis) {
  if (a.dtype != b.dtype || a.shape.size() != b.shape.size()) return false;
  for (size_t i = 0; i < a.shape.size(); ++i) {
    if (i != axis && a.shape[i] != b.shape[i]) return false;
  }
  return true;
}

}  // namespace

std::optional<ObjectShard> parse_object_key(const std::string& text) {
  constexpr std::string_view kShard = "/shard_";
  const size_t slash = text.rfind(kShard);
  if (slash == text.npos) return std::nullopt;
  const std::string_view numbers = std::string_view(text).substr(slash + kShard.size());
  const size_t middle = numbers.find('_');
  if (middle == numbers.npos) return std::nullopt;
  auto indices = numbers_of(numbers.substr(0, middle));
  auto counts = numbers_of(numbers.substr(middle + 1));
  if (!indices || !counts || indices->size() != counts->size()) return std::nullopt;
  return ObjectShard{text.substr(0, slash), std::move(*indices), std::move(*counts)};
}

std::string object_key(const ObjectShard& shard) {
  return shard.key + "/shard_" + ckpt::joined(shard.indices, ".") + "_" +
         ckpt::joined(shard.counts, ".");
}

void check_object_shards(std::span<const ckpt::ObjectEntry> objects, const KeyRules& rules) {
  struct Shards {
    std::set<std::vector<uint32_t>> found;
    uint64_t count = 0;  // 0: the key is not stacked
  };
  std::map<std::string, Shards> by_key;
  auto last = by_key.end();  // shards of one key follow one another
  for (const ckpt::ObjectEntry& object : objects) {
    const auto shard = parse_object_key(object.key);
    if (!shard || !object.file.empty()) continue;
    if (last == by_key.end() || last->first != shard->key) {
      last = by_key.try_emplace(shard->key).first;
      if (stacked_axes(shard->key, rules).count() == 0) continue;
      last->second.count = 1;
      for (const uint32_t one : shard->counts) last->second.count *= one;
    }
    std::set<std::vector<uint32_t>>& found = last->second.found;
    if (last->second.count > 0) found.insert(found.end(), shard->indices);
  }
  for (const auto& [key, shards] : by_key) {
    if (shards.found.size() >= shards.count) continue;
    throw Error(ErrorCode::Corrupt, {.file = ".metadata", .key = key},
                "holds " + std::to_string(shards.found.size()) + " of " +
                    std::to_string(shards.count) + " layers and experts");
  }
}

std::vector<TensorEntry> unstack(const TensorEntry& stacked, StackedAxes axes) {
  const size_t depth = axes.count();
  const uint64_t inner_count = depth == 2 ? stacked.shape[1] : 1;
  TensorEntry empty{{}, stacked.key, stacked.dtype, {}, {}};
  empty.shape.assign(stacked.shape.begin() + static_cast<ptrdiff_t>(depth), stacked.shape.end());
  std::vector<TensorEntry> parts(stacked.shape[0] * inner_count, empty);
  for (const Chunk& chunk : stacked.chunks) {
    const Box& box = chunk.box;
    Chunk part{{{box.offsets.begin() + static_cast<ptrdiff_t>(depth), box.offsets.end()},
                {box.sizes.begin() + static_cast<ptrdiff_t>(depth), box.sizes.end()}},
               chunk.region};
    const uint64_t part_bytes =
        ckpt::element_count(part.box.sizes) * ckpt::bytes_per_element(stacked.dtype);
    part.payload_offset_bytes = chunk.payload_offset_bytes;
    const uint64_t inner_begin = depth == 2 ? box.offsets[1] : 0;
    const uint64_t inner_size = depth == 2 ? box.sizes[1] : 1;
    for (uint64_t outer = 0; outer < box.sizes[0]; ++outer) {
      for (uint64_t inner = 0; inner < inner_size; ++inner) {
        const uint64_t index = (box.offsets[0] + outer) * inner_count + inner_begin + inner;
        parts[index].chunks.push_back(part);
        part.payload_offset_bytes += part_bytes;
      }
    }
  }
  return parts;
}

void LayerStacks::add(std::string_view name, uint64_t stacked_layers) {
  has_language_output_ = has_language_output_ || name == kLanguageOutput;
  const std::string_view prefix = stack_of(name);
  if (prefix.empty()) return;
  auto seen = seen_.find(prefix);
  if (seen == seen_.end()) seen = seen_.emplace(prefix, Seen()).first;
  const auto in_layer = split_stack(name);
  (in_layer ? seen->second.unstacked : seen->second.stacked) = name;
  seen->second.layers =
      std::max(seen->second.layers, in_layer ? uint64_t{in_layer->layer} + 1 : stacked_layers);
  const std::string_view rest = in_layer ? in_layer->rest : name.substr(prefix.size());
  if (rest.starts_with("input_layernorm.")) seen->second.has_norms = true;
}

bool is_tied_by_weights(const Value& args, const ModelFacts& facts) {
  return facts.divided_stack == kLanguageDecoder && facts.output_is_tied &&
         !args.find("language_model_type");
}

// pretrain_vlm.py has the vision model's layers in args.num_layers where both are given.
void LayerStacks::settle_language_model(const Value& args, TrainingState& state) const {
  const auto layers = args.find("decoder_num_layers");
  const bool are_given = layers && layers->is(Kind::Int) && !args.find("language_model_type");
  if (are_given && layers->as_int() > 0 && layers->as_int() <= INT32_MAX) {
    state.grid.pipeline.num_layers = static_cast<uint32_t>(layers->as_int());
  }
  const bool is_copy = from_ == From::StateDicts && state.grid.sizes.pipeline_parallel > 1;
  if (has_language_output_ && !is_copy && is_tied_by_weights(args, state.facts)) {
    state.facts.output_is_tied = false;
  }
}

void LayerStacks::settle(const Value& args, TrainingState& state) const {
  ModelFacts& facts = state.facts;
  const bool has_encoder = seen_.contains(kEncoder), has_decoder = seen_.contains(kLayersPrefix);
  facts.divided_stack = kLayersPrefix;
  if (!has_decoder && has_encoder) facts.divided_stack = kEncoder;
  if (seen_.contains(kLanguageDecoder)) {
    facts.divided_stack = kLanguageDecoder;
    settle_language_model(args, state);
  }
  if (has_decoder && has_encoder) facts.divided_stack.clear();
  for (const auto& [prefix, seen] : seen_) {
    const bool is_stacked = !seen.stacked.empty();
    if (is_stacked && !seen.unstacked.empty()) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = seen.unstacked},
                  "is the key of one layer, but '" + ckpt::escaped(seen.stacked) +
                      "' is stacked over layers; a model with both is not supported");
    }
    if (seen.layers > kLayersMax) {
      throw Error(ErrorCode::Unsupported,
                  {.file = {}, .key = is_stacked ? seen.stacked : seen.unstacked},
                  "is of more layers than any model has");
    }
    const bool is_divided = prefix == facts.divided_stack;
    if (is_divided && prefix == kLayersPrefix) continue;
    LayerStack stack{
        .prefix = prefix,
        .layers = is_divided ? state.grid.pipeline.num_layers : static_cast<uint32_t>(seen.layers)};
    if (from_ == From::Store) {
      stack.is_stacked = is_stacked;
      stack.layer_norm_renamed = facts.layer_norm_renamed && !seen.has_norms;
    } else {
      stack.is_stacked = facts.layers_stacked;
      // Megatron's local layers of LLaVA (llava_spec.py, vit_layer_specs.py) rename none.
      const bool is_llava =
          prefix == kVisionStack || (prefix == kLanguageDecoder && seen_.contains(kVisionStack));
      stack.layer_norm_renamed = facts.layer_norm_renamed && !is_llava;
      const bool is_known = is_llava || prefix == kLayersPrefix || prefix == kEncoder;
      stack.are_keys_known = is_known || !facts.layer_norm_renamed;
    }
    facts.stacks.push_back(std::move(stack));
  }
}

// A segment's chunks become chunks of the whole, behind those of the segments before it.
SegmentedTensors::SegmentedTensors(const ckpt::Catalog& catalog, const KeyRules& rules) {
  constexpr size_t kNone = ~size_t{0};
  std::map<std::string, Segments> by_key;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorEntry& tensor = catalog.tensors[i];
    const size_t dot = tensor.key.rfind('.');
    const bool may_be =
        tensor.file.empty() && dot != tensor.key.npos &&
        rules.table->is_name_of_segment(std::string_view(tensor.key).substr(dot + 1));
    const size_t begin = may_be ? begin_of_param(tensor.key) : tensor.key.npos;
    if (begin == tensor.key.npos) continue;
    const auto found = segment_of_key(std::string_view(tensor.key).substr(begin), rules);
    if (!found) continue;
    Segments& segments = by_key[tensor.key.substr(0, dot)];
    segments.begin_of_param = begin;
    segments.tensors.resize(found->rule->segments.size(), kNone);
    segments.tensors[found->segment] = i;
  }
  for (const auto& [key, segments] : by_key) {
    if (std::ranges::count(segments.tensors, kNone) > 0) continue;
    std::vector<const TensorEntry*> tensors;
    is_joined_.resize(catalog.tensors.size());
    for (const size_t tensor : segments.tensors) {
      is_joined_[tensor] = true;
      tensors.push_back(&catalog.tensors[tensor]);
    }
    const std::string param = key.substr(segments.begin_of_param);
    const size_t axis = stacked_axes(param, rules).count();
    join(key, axis, tensors);
    std::vector<uint64_t> sections;
    for (const TensorEntry* const tensor : tensors) sections.push_back(tensor->shape[axis]);
    const auto [known, is_first] = sections_.emplace(param, sections);
    if (!is_first && known->second != sections) {
      corrupt(key, "has segments of other sizes than the parameter, or another state of it");
    }
  }
}

void SegmentedTensors::join(const std::string& key, size_t axis,
                            const std::vector<const TensorEntry*>& of) {
  TensorEntry whole = *of.front();
  for (const TensorEntry* const segment : of) {
    if (segment->shape.size() <= axis || !fit(*of.front(), *segment, axis)) {
      corrupt(segment->key, "has a different type or shape from '" +
                                ckpt::escaped(of.front()->key) + "', a part of the same tensor");
    }
    if (segment == of.front()) continue;
    for (Chunk chunk : segment->chunks) {
      chunk.box.offsets[axis] += whole.shape[axis];
      whole.chunks.push_back(std::move(chunk));
    }
    whole.shape[axis] += segment->shape[axis];
  }
  whole.key = key;
  joined_.push_back(std::move(whole));
}

const std::vector<uint64_t>* SegmentedTensors::sections(const std::string& key) const {
  const auto found = sections_.find(key);
  return found == sections_.end() ? nullptr : &found->second;
}

}  // namespace optim
