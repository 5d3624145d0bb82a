// The mean of models, computed where it is read.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <ckpt/cast.h>
#include <ckpt/folder.h>
#include <ckpt/printed.h>
#include <ckpt/rounding.h>
#include <ckpt/tensor_stream.h>
#include <training/combine.h>
#include <training/layer_wise_checkpoint.h>

#include "args/run_args.h"
#include "base/wide_vectors.h"
#include "convert/files_beside.h"
#include "convert/repaired_source.h"
#include "convert/write_named.h"
#include "grid/placement.h"
#include "huggingface/config_args.h"
#include "huggingface/name_table.h"
#include "model/expression.h"
#include "state/computed_tensors.h"
#include "state/read_range.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

constexpr uint64_t kPieceElements = uint64_t{1} << 18;

// A model, and what describes it.
struct Model {
  OpenedTraining opened;
  std::filesystem::path path;
  std::optional<RepairedState> state = {};  // of Megatron
  std::map<std::string, TensorRef> tensors = {};
  json description = json::object();
};

// Fields of config.json that say nothing of what a model computes.
bool is_described(const std::string& field) {
  static const std::set<std::string> kOthers = {
      "transformers_version", "_name_or_path", "dtype",        "torch_dtype", "use_cache",
      "bos_token_id",         "eos_token_id",  "pad_token_id", "auto_map"};
  return !kOthers.contains(field);
}

// Arguments that tables of names make config.json of.
const std::set<std::string>& arguments_of_models() {
  static const std::set<std::string> names = [] {
    std::set<std::string> all;
    for (const std::string& table : known_tables()) {
      for (const auto& [name, text] : find_table(table).args) all.insert(name);
    }
    for (const char* const training : {"init_method_std", "moe_aux_loss_coeff"})
      all.erase(training);
    return all;
  }();
  return names;
}

json description_of(const TrainingState& state) {
  const Value args = state.args();
  json described = json::object();
  for (const std::string& name : arguments_of_models()) {
    const auto value = args.find(name);
    if (value && !value->is_none()) described[name] = json_of(*value);
  }
  return described;
}

json description_of(const OpenedTraining& folder) {
  const auto files = ckpt::local_folder();
  json described = json::object();
  if (files->kind_of(folder.folder() / "config.json") != ckpt::EntryKind::File) return described;
  const json config = config_of(folder.folder());
  for (const auto& [field, value] : config.items()) {
    if (is_described(field) && !value.is_null()) described[field] = value;
  }
  return described;
}

Model open_model(const std::filesystem::path& path, const ConvertOptions& given) {
  ConvertOptions options = given;
  options.model_only = true;
  auto [opened, repairs] = open_source(path, options);
  Model model{std::move(opened), path};
  if (has_training_state(model.opened)) {
    model.state = read_repaired(model.opened, options, repairs);
    for (const TrainedParam& param : model.state->state.params) {
      model.tensors.emplace(param.info.name, param.weight);
    }
    model.description = description_of(model.state->state);
    return model;
  }
  if (model.opened.catalog().format != ckpt::Format::Safetensors) {
    throw Error(ErrorCode::Unsupported, {.file = model.opened.shown_path(), .key = {}},
                "is neither a training checkpoint of Megatron nor safetensors",
                "ckpt-convert --to safetensors --model-only makes a file of its model");
  }
  for (const TensorEntry& tensor : model.opened.catalog().tensors) {
    model.tensors.emplace(tensor.key, std::make_shared<const TensorEntry>(tensor));
  }
  model.description = description_of(model.opened);
  return model;
}

[[noreturn]] void refuse(const Model& model, const std::string& key, const std::string& problem) {
  throw Error(ErrorCode::Unsupported, {.file = model.opened.shown_path(), .key = key}, problem);
}

// Of embeddings that parallel sizes pad otherwise.
bool differ_in_padding(const Model& first, const std::string& name, const TensorEntry& a,
                       const TensorEntry& b) {
  if (!first.state || !is_vocabulary(first.state->state, name)) return false;
  const auto tokens = first.state->state.facts.vocabulary;
  const bool is_matrix = a.shape.size() == 2 && b.shape.size() == 2 && a.shape[1] == b.shape[1];
  return is_matrix && tokens && *tokens <= std::min(a.shape[0], b.shape[0]);
}

void require_same_model(const Model& first, const Model& other) {
  const std::string where = ckpt::escaped(first.opened.shown_path());
  if (first.state.has_value() != other.state.has_value()) {
    refuse(other, {},
           other.state ? "is a checkpoint of Megatron, but " + where + " is not"
                       : "is not a checkpoint of Megatron, as " + where + " is");
  }
  std::set<std::string> fields;
  for (const Model* const model : {&first, &other}) {
    for (const auto& [field, value] : model->description.items()) fields.insert(field);
  }
  for (const std::string& field : fields) {
    const json one = first.description.value(field, json());
    const json two = other.description.value(field, json());
    if (one == two) continue;
    const std::string key = (first.state ? "args." : "config.json/") + field;
    refuse(other, key, "is " + two.dump() + ", but in " + where + " " + one.dump());
  }
  for (const auto& [name, tensor] : other.tensors) {
    if (!first.tensors.contains(name)) refuse(other, name, "is not in " + where);
  }
  for (const auto& [name, tensor] : first.tensors) {
    const auto found = other.tensors.find(name);
    if (found == other.tensors.end()) refuse(other, name, "is missing; " + where + " has it");
    const TensorEntry& twin = *found->second;
    if (twin.shape != tensor->shape && !differ_in_padding(first, name, *tensor, twin)) {
      refuse(other, name,
             "has the shape " + ckpt::shape_text(twin.shape) + ", but in " + where + " " +
                 ckpt::shape_text(tensor->shape));
    }
    if (twin.dtype != tensor->dtype) {
      refuse(other, name,
             "is of type " + std::string(ckpt::name(twin.dtype)) + ", but in " + where + " " +
                 std::string(ckpt::name(tensor->dtype)));
    }
  }
}

struct Weights {
  std::vector<float> each;
  float total = 0;
};

// What each element is multiplied by, or divided.
struct Factor {
  DType type;
  float value;
  bool is_first = false;  // the first term starts from no zero
};

template <DType kType>
CKPT_INLINED void add_terms_as(const Factor& factor, const std::byte* read, std::span<float> sums) {
  constexpr size_t kBytes = kType == DType::Float32 ? 4 : 2;
  if (factor.is_first) {
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = factor.value * float_at(kType, read + i * kBytes);
    }
    return;
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] += factor.value * float_at(kType, read + i * kBytes);
  }
}

CKPT_WIDE_VECTORS void add_terms(const Factor& factor, std::span<const std::byte> read,
                                 std::span<float> sums) {
  switch (factor.type) {
    case DType::Float32: return add_terms_as<DType::Float32>(factor, read.data(), sums);
    case DType::BFloat16: return add_terms_as<DType::BFloat16>(factor, read.data(), sums);
    default: return add_terms_as<DType::Float16>(factor, read.data(), sums);
  }
}

template <DType kType>
CKPT_INLINED void divide_as(float by, std::span<const float> sums, std::byte* __restrict out) {
  constexpr size_t kBytes = kType == DType::Float32 ? 4 : 2;
  for (size_t i = 0; i < sums.size(); ++i) put_float(sums[i] / by, kType, out + i * kBytes);
}

// Rounded once.
CKPT_WIDE_VECTORS void divide(const Factor& factor, std::span<const float> sums, std::byte* out) {
  switch (factor.type) {
    case DType::Float32: return divide_as<DType::Float32>(factor.value, sums, out);
    case DType::BFloat16: return divide_as<DType::BFloat16>(factor.value, sums, out);
    default: return divide_as<DType::Float16>(factor.value, sums, out);
  }
}

// Reads one tensor of each model, and has their mean.
class Mean {
 public:
  Mean(const std::vector<Model>& models, const Weights& weights, const std::string& name)
      : models_(models), weights_(weights) {
    for (const Model& model : models) tensors_.push_back(model.tensors.at(name));
  }

  void fill(uint64_t first, std::span<std::byte> out) const {
    const DType type = tensors_[0]->dtype;
    const uint64_t element_bytes = ckpt::bytes_per_element(type);
    thread_local std::vector<std::byte> read;
    thread_local std::vector<float> sums;
    while (!out.empty()) {
      const uint64_t count = std::min<uint64_t>(out.size() / element_bytes, kPieceElements);
      sums.resize(count);
      read.resize(count * element_bytes);
      for (size_t i = 0; i < tensors_.size(); ++i) {
        // Rows of padding that it lacks count as zeros.
        const uint64_t there = ckpt::element_count(tensors_[i]->shape);
        const uint64_t taken = std::min(count, there - std::min(there, first));
        if (i == 0) std::fill(sums.begin() + static_cast<ptrdiff_t>(taken), sums.end(), 0.0F);
        if (taken == 0) continue;
        const auto part = std::span(read).first(taken * element_bytes);
        read_range(models_[i].opened, *tensors_[i], first, part);
        add_terms({type, weights_.each[i], i == 0}, part, std::span(sums).first(taken));
      }
      divide({type, weights_.total}, sums, out.data());
      out = out.subspan(count * element_bytes);
      first += count;
    }
  }

 private:
  const std::vector<Model>& models_;
  const Weights& weights_;
  std::vector<TensorRef> tensors_;
};

Weights checked_weights(size_t count, std::vector<double> given) {
  if (count < 2) {
    throw Error(ErrorCode::InvalidArgument, {}, "at least two sources are needed for an average");
  }
  if (given.empty()) given.assign(count, 1);
  if (given.size() != count) {
    throw Error(ErrorCode::InvalidArgument, {},
                "--weights has " + std::to_string(given.size()) + " numbers for " +
                    std::to_string(count) + " sources");
  }
  const auto total = static_cast<float>(std::accumulate(given.begin(), given.end(), 0.0));
  if (std::isfinite(total) && total != 0) return {{given.begin(), given.end()}, total};
  throw Error(ErrorCode::InvalidArgument, {}, "--weights do not add up to a number but 0");
}

// The tensors of the first model with the mean of all; those of whole numbers, which must be equal,
// as they are.
struct Averaged {
  std::map<std::string, TensorRef> tensors;
  std::shared_ptr<const ckpt::PayloadSource> payloads;
};

Averaged averaged(const std::vector<Model>& models, const Weights& weights) {
  Averaged made;
  const Model& first = models[0];
  ComputedTensors computed(first.opened);
  for (const auto& [name, tensor] : first.tensors) {
    if (!ckpt::can_round(tensor->dtype)) {
      for (const Model& other : models) {
        const TensorEntry& twin = *other.tensors.at(name);
        if (ckpt::same_bytes(*tensor, first.opened, twin, other.opened)) continue;
        refuse(other, name,
               "is of type " + std::string(ckpt::name(twin.dtype)) +
                   ", which has no mean, and differs from that of the first source");
      }
      made.tensors.emplace(name, tensor);
      continue;
    }
    auto mean = std::make_shared<const Mean>(models, weights, name);
    made.tensors.emplace(
        name, std::make_shared<const TensorEntry>(computed.add(
                  tensor->key, tensor->dtype, tensor->shape,
                  [mean](uint64_t at, std::span<std::byte> out) { mean->fill(at, out); })));
  }
  made.payloads = computed.payloads();
  return made;
}

}  // namespace

ConvertReport average(const std::vector<std::filesystem::path>& sources,
                      const std::filesystem::path& destination, const std::vector<double>& weights,
                      const ConvertOptions& given) {
  const Weights factors = checked_weights(sources.size(), weights);
  std::vector<Model> models;
  for (const std::filesystem::path& source : sources) {
    models.push_back(open_model(source, given));
    require_same_model(models.front(), models.back());
  }
  Model& first = models.front();
  Averaged made = averaged(models, factors);
  ConvertOptions options = given;
  options.model_only = true;
  Job job{first.opened, first.path, destination};
  ConvertReport report;
  if (first.state) {
    RepairedState state = *first.state;
    for (TrainedParam& param : state.state.params) param.weight = made.tensors.at(param.info.name);
    state.payloads = made.payloads;
    report = convert_state(std::move(job), options, std::move(state));
  } else {
    job.repaired = made.payloads;
    WrittenFolder folder;
    for (const TensorEntry& tensor : first.opened.catalog().tensors) {
      const TensorRef& mean = made.tensors.at(tensor.key);
      folder.tensors.push_back({tensor.key, {mean, mean->shape}});
    }
    report = write_folder(std::move(job), std::move(folder), options);
  }
  report.computed = "the average of " + std::to_string(sources.size()) + " sources";
  return report;
}

}  // namespace optim
