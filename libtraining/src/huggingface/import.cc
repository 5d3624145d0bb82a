// A Hugging Face folder's tensors under the names of Megatron, by a table.
#include "huggingface/import.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include <ckpt/cast.h>
#include <ckpt/folder.h>
#include <ckpt/printed.h>
#include <ckpt/tensor_stream.h>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/glu_rows.h"
#include "grid/placement.h"
#include "grid/sharing_of_params.h"
#include "huggingface/config_args.h"
#include "huggingface/quantized.h"
#include "huggingface/table_walk.h"
#include "huggingface/viewed_tensor.h"
#include "layouts/torch_dist/common_optimizers.h"
#include "model/expression.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr const char* kWhatHelps =
    "--exclude leaves tensors out; --names FILE takes a table of your own";
constexpr std::string_view kFusedNorm = ".layer_norm_weight", kMtp = "mtp.layers.";

// A tensor of the model, out of what the folder has of it.
struct ModelTensor {
  std::string name;
  TensorEntry entry = {};        // without a key: nothing is known of it
  uint64_t element_count = 0;    // of its chunks
  float added = 0;               // in the folder, to each element
  std::string first_key = {};    // of the folder, that has some of it
  std::string missing_key = {};  // of the folder, that should
  bool is_complete() const {
    return !first_key.empty() && element_count == ckpt::element_count(entry.shape);
  }
};

bool do_overlap(std::vector<Chunk> chunks) {
  const auto end_of = [](const Box& box) {
    return box.offsets.empty() ? 0 : box.offsets[0] + box.sizes[0];
  };
  std::ranges::sort(chunks, {}, [](const Chunk& chunk) { return chunk.box.offsets; });
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (size_t j = i + 1; j < chunks.size(); ++j) {
      if (!chunks[j].box.offsets.empty() && chunks[j].box.offsets[0] >= end_of(chunks[i].box))
        break;
      if (ckpt::intersect(chunks[i].box, chunks[j].box)) return true;
    }
  }
  return false;
}

class Importer {
 public:
  Importer(const OpenedTraining& folder, const FolderTensors& tensors, const ImportArgs& args,
           FiledState& state)
      : folder_(folder),
        catalog_(tensors.catalog),
        payloads_(tensors.products ? *tensors.products : folder),
        table_(args.table),
        scope_(args.table, args.args, args.given),
        state_(state),
        rules_(rules_of(state)) {
    for_each_tensor(table_, scope_, [&](TableTensor tensor) {
      for (const TableTensor::Part& part : tensor.parts) {
        names_.insert(part.names.begin(), part.names.end());
      }
      described_.push_back(std::move(tensor));
    });
  }

  // Whether the folder has any tensor of layers that predict further tokens.
  bool has_further_layers() const {
    return std::ranges::any_of(described_, [&](const TableTensor& tensor) {
      return tensor.parts[0].names[0].starts_with(kMtp) &&
             catalog_.find_tensor(tensor.key) != nullptr;
    });
  }

  void run(const ckpt::KeyRules& keys) {
    for (const TableTensor& tensor : described_) place(tensor);
    require_complete();
    for (const TensorEntry& tensor : catalog_.tensors) {
      if (!placed_.contains(tensor.key) && keys.accepts(tensor.key)) explain(tensor);
    }
    make_params();
  }

 private:
  // Of the names that Megatron's modules have, the one of the implementation that args ask for.
  const std::string& choose_name(const std::vector<std::string>& names) const {
    const auto fits = [&](const std::string& name) {
      const auto known = rules_.find(name);
      if (!known) return false;
      if (expert_in(name))
        return is_of_grouped_experts(*known->rule) == state_.facts.experts_grouped;
      if (!name.ends_with(kFusedNorm)) return true;
      const std::string linear = name.substr(0, name.size() - kFusedNorm.size()) + ".weight";
      return !state_.facts.layer_norm_renamed && names_.contains(linear);
    };
    const bool is_engine = !state_.facts.layer_norm_renamed;
    for (const bool is_fused : {is_engine, !is_engine}) {
      for (const std::string& name : names) {
        if (name.ends_with(kFusedNorm) == is_fused && fits(name)) return name;
      }
    }
    return names[0];
  }

  size_t tensor_named(const std::string& name) {
    const auto [known, is_new] = places_.emplace(name, tensors_.size());
    if (is_new) tensors_.push_back({name});
    return known->second;
  }

  void place(const TableTensor& tensor) {
    std::vector<size_t> parts;
    for (const TableTensor::Part& part : tensor.parts) {
      parts.push_back(tensor_named(choose_name(part.names)));
    }
    const TensorEntry* const found = catalog_.find_tensor(tensor.key);
    if (found == nullptr) {
      for (const size_t part : parts) {
        std::string& missing = tensors_[part].missing_key;
        if (missing.empty()) missing = tensor.key;
      }
      return;
    }
    placed_.insert(tensor.key);
    for (GivenPart& part : parts_of({*found, *tensor.row}, scope_, parts)) {
      ModelTensor& model = tensors_[part.tensor];
      if (model.is_complete()) {
        require_copy(*found, std::move(part), tensor.added);
      } else {
        add(*found, std::move(part), tensor.added);
      }
    }
  }

  void add(const TensorEntry& found, GivenPart part, float added) {
    ModelTensor& model = tensors_[part.tensor];
    if (model.first_key.empty()) {
      require_float(found, "a scale beside it, KEY_scale_inv, would say what it stands for");
      model.entry.dtype = found.dtype;
      model.entry.shape = part.shape;
      model.added = added;
      model.first_key = found.key;
    }
    if (model.entry.dtype != found.dtype) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = found.key},
                  "is of type " + std::string(ckpt::name(found.dtype)) + ", but " +
                      ckpt::escaped(model.first_key) +
                      ", with which it is one tensor in Megatron, " + "of type " +
                      std::string(ckpt::name(model.entry.dtype)));
    }
    if (model.entry.shape != part.shape || model.added != added) {
      throw Error(ErrorCode::Corrupt, {.file = table_.name, .key = model.name},
                  "has different shapes, or sums, by rows of the table");
    }
    for (Chunk& chunk : part.chunks) {
      model.element_count += ckpt::element_count(chunk.box.sizes);
      model.entry.chunks.push_back(std::move(chunk));
    }
  }

  // Of a tensor that Megatron has once.
  void require_copy(const TensorEntry& found, GivenPart part, float added) {
    const ModelTensor& model = tensors_[part.tensor];
    TensorEntry copy = model.entry;
    copy.chunks = std::move(part.chunks);
    uint64_t count = 0;
    for (const Chunk& chunk : copy.chunks) count += ckpt::element_count(chunk.box.sizes);
    const bool is_alike = found.dtype == copy.dtype && part.shape == copy.shape &&
                          added == model.added && count == model.element_count;
    if (!is_alike || !ckpt::same_bytes(model.entry, payloads_, copy, payloads_)) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = found.key},
                  "differs from " + ckpt::escaped(model.first_key) +
                      ", and Megatron has one tensor for both, " + ckpt::escaped(model.name));
    }
    state_.not_carried.push_back(
        {found.key, "the same as " + model.first_key + ", which Megatron has once", found.key});
  }

  void require_complete() const {
    for (const ModelTensor& model : tensors_) {
      if (model.is_complete() && !do_overlap(model.entry.chunks)) continue;
      if (!model.missing_key.empty()) {
        throw Error(ErrorCode::Unsupported,
                    {.file = folder_.shown_path(), .key = model.missing_key},
                    "is not in the folder, and " + table_.architecture + " needs it for " +
                        ckpt::escaped(model.name));
      }
      throw Error(ErrorCode::Corrupt, {.file = table_.name, .key = model.name},
                  "the table's rows do not have each of its elements once");
    }
  }

  // Of a tensor that no row of the model at hand takes.
  void explain(const TensorEntry& tensor) {
    if (tensor.key.ends_with(".rotary_emb.inv_freq")) {
      state_.not_carried.push_back({tensor.key, "angles, which args give", tensor.key});
      return;
    }
    const auto row = std::ranges::find(table_.tensors, tensor.key, &TensorRow::target);
    const auto embedding = places_.find(std::string(kWordEmbeddings));
    const bool is_output = row != table_.tensors.end() && embedding != places_.end() &&
                           row->parts[0].from[0] == kOutputLayer;
    if (is_output && state_.facts.output_is_tied) {
      for (GivenPart& part : parts_of({tensor, *row}, scope_, {embedding->second})) {
        require_copy(tensor, std::move(part), 0);
      }
      return;
    }
    throw Error(ErrorCode::Unsupported, {.file = folder_.shown_path(), .key = tensor.key},
                "has no place in " + table_.architecture + " by the table " + table_.name,
                kWhatHelps);
  }

  // --- the state ---

  void make_params() {
    std::set<std::string> modules;
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      state_.model.push_back({ModelEntry::What::Param, tensors_[i].name, i, std::nullopt});
      add_extra_state(tensors_[i], modules);
    }
    order_model(state_);
    std::string first_rounded;
    uint64_t rounded_count = 0;
    for (ModelEntry& entry : state_.model) {
      if (entry.what != ModelEntry::What::Param) continue;
      ModelTensor& model = tensors_[entry.param];
      const bool is_rounded = model.added != 0 && !ckpt::is_widening(model.entry.dtype);
      if (is_rounded && rounded_count++ == 0) first_rounded = model.first_key;
      if (model.added != 0) {
        const DType type = model.entry.dtype;
        model.entry = ckpt::with_cast(std::move(model.entry), type, {.added = -model.added});
      }
      entry.param = static_cast<uint32_t>(state_.params.size());
      TrainedParam& param =
          state_.params.emplace_back(make_param(with_key(std::move(model.entry), model.name)));
      param.info.requires_grad = !is_buffer(state_, entry.name);
    }
    ask_for_gating(state_);
    for (TrainedParam& param : state_.params) param.sharing = sharing_of_chunks(state_, param, 1);
    if (rounded_count == 0) return;
    state_.not_carried.push_back({"bits of " + std::to_string(rounded_count) + " norms",
                                  "rounded where 1 is taken off, as of " + first_rounded});
  }

  void add_extra_state(const ModelTensor& model, std::set<std::string>& modules) {
    std::string name = extra_state_beside(model.name, model.entry.shape.size(), state_);
    if (name.empty() || !modules.insert(name).second) return;
    state_.model.push_back({ModelEntry::What::ExtraState, std::move(name), 0, std::nullopt});
  }

  const OpenedTraining& folder_;
  const ckpt::Catalog& catalog_;
  const ckpt::PayloadSource& payloads_;
  const NameTable& table_;
  NameScope scope_;
  FiledState& state_;
  const ModelRules& rules_;
  std::vector<TableTensor> described_;
  std::set<std::string> names_;  // that tensors of the model may have
  std::vector<ModelTensor> tensors_;
  std::unordered_map<std::string, size_t> places_;  // of tensors_, by name
  std::set<std::string> placed_;                    // keys of the folder
};

Document common_state(const nlohmann::json& args, DType type) {
  Document document = *state_of_args(args);
  ValueTree& tree = document.tree;
  const NodeId root = tree.root().id();
  const NodeId attributes = tree.root().find("args")->state()->id();
  tree.put(attributes, "params_dtype", tree.global("torch", ckpt::name(type)));
  tree.put(root, "checkpoint_version", tree.real(3.0));
  tree.put(root, "iteration", tree.integer(0));
  return document;
}

}  // namespace

FiledState state_without_params(nlohmann::json args, DType type, ckpt::Format container) {
  args["ckpt_format"] = std::string(ckpt::name(container));
  args["bf16"] = type == DType::BFloat16;
  args["fp16"] = type == DType::Float16;
  FiledState state;
  state.common = common_state(args, type);
  read_args(state.args(), "config.json", state);
  state.filed.container = container;
  state.filed.is_layer_wise = false;
  state.folder_name = "release";
  return state;
}

bool states_architecture(const OpenedTraining& folder) {
  if (folder.catalog().format != ckpt::Format::Safetensors) return false;
  if (folder.source().kind_of(folder.folder() / "config.json") != ckpt::EntryKind::File)
    return false;
  return config_of(folder.folder()).contains("architectures");
}

HuggingFaceImport import_tensors(const OpenedTraining& folder, const FolderTensors& tensors,
                                 ImportArgs args, const ImportOptions& options) {
  const DType type = type_of_most(tensors.catalog.tensors);
  FiledState state;
  std::vector<ckpt::NotCarried> lost;
  const NameScope scope(args.table, args.args, args.given);
  if (scope.size(args.table.further.count) > 0) {
    state.common = common_state(args.args, type);
    read_args(state.args(), "config.json", state);
    if (!Importer(folder, tensors, args, state).has_further_layers()) {
      args.args["mtp_num_layers"] = nullptr;
      lost.push_back({"config.json: num_nextn_predict_layers",
                      "the folder has no layers that predict further tokens"});
    }
  }
  state = state_without_params(args.args, type, options.container);
  state.not_carried = std::move(lost);
  Importer(folder, tensors, args, state).run(options.keys);
  if (!args.unused_fields.empty()) {
    state.not_carried.push_back({"config.json: " + ckpt::joined(args.unused_fields),
                                 "Megatron has no arguments for these"});
  }
  state.not_carried.insert(state.not_carried.end(), tensors.changed.begin(), tensors.changed.end());
  return {std::move(state), tensors.products,
          args.table.name + ", " + args.table.architecture + ", by config.json"};
}

HuggingFaceImport import_model(const OpenedTraining& folder, const ImportOptions& options) {
  ImportArgs args = import_args(folder.folder(), options.names);
  return import_tensors(folder, folder_tensors(folder, config_of(folder.folder())), std::move(args),
                        options);
}

}  // namespace optim
