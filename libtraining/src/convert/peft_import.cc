// Source: megatron/bridge/peft/*.py of Megatron-Bridge 0.6.2.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <ckpt/folder.h>
#include <ckpt/tensor_stream.h>

#include "args/bridge_args.h"
#include "convert/adapter.h"
#include "convert/peft.h"
#include "grid/build_state.h"
#include "huggingface/config_args.h"
#include "huggingface/table_walk.h"
#include "huggingface/viewed_tensor.h"
#include "layouts/torch_dist/common_optimizers.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

constexpr std::string_view kWeight = ".weight", kMtp = "mtp.";
constexpr const char* kConfig = "adapter_config.json";

[[noreturn]] void refuse(const std::string& key, const std::string& problem) {
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = key}, problem);
}

// Of a weight's names in the model that of the module, with grouped experts as one.
std::string module_of(const std::vector<std::string>& names) {
  std::string module;
  for (const std::string& name : names) {
    if (name.find(".local_experts.") != name.npos) continue;
    if (auto found = module_of_weight(name); !found.empty()) module = std::move(found);
  }
  return module;
}
std::string last_of(const std::string& module) { return module.substr(module.rfind('.') + 1); }

class AdapterImport {
 public:
  AdapterImport(const OpenedTraining& folder, const ImportArgs& args)
      : table_(args.table),
        args_(args.args),
        scope_(with_axes(args.table, args.args, json::object())) {
    for_each_tensor(table_, scope_, [&](TableTensor tensor) {
      if (tensor.parts.size() != 1) return;
      auto entry = std::make_shared<TensorEntry>();
      entry->shape = join_parts(*tensor.row, scope_, 1).shape;
      base_[tensor.key] = {entry, entry->shape};
      const std::string module = module_of(tensor.parts[0].names);
      if (tensor.key.ends_with(kWeight) && !module.empty()) {
        modules_[module].push_back(std::move(tensor));
      }
    });
    adapter_.emplace(folder.folder(), base_);
    require_lora();
    choose_modules();
    choose_numbers();
  }

  void add_to(FiledState& state) const {
    for (const auto& [module, tensors] : chosen_) {
      const bool is_split = is_canonical_ && is_fused(tensors) && !is_of_experts(tensors[0]);
      if (!is_split) add(module, tensors, state);
      for (const TableTensor& tensor : tensors) {
        if (is_split) add(module + canonical_suffix(tensor.key), {tensor}, state);
      }
    }
    order_model(state);
  }

  std::string run_config() const {
    std::set<std::string> targets;
    for (const auto& [module, tensors] : chosen_) {
      const std::string last = last_of(module);
      if (!is_canonical_ || (last != "linear_qkv" && last != "linear_fc1")) {
        targets.insert(last);
        continue;
      }
      for (const TableTensor& tensor : tensors) {
        const std::string part = canonical_suffix(tensor.key).substr(sizeof(".adapter_") - 1);
        targets.insert(last == "linear_fc1" ? last + "_" + part : "linear_" + part);
      }
    }
    const std::string kind = is_canonical_ ? "canonical_lora.CanonicalLoRA" : "lora.LoRA";
    std::string text = "model:\n  num_layers: " + args_.value("num_layers", json()).dump() + "\n";
    for (const char* const size : {"context", "expert_model", "pipeline_model", "tensor_model"}) {
      text += "  " + std::string(size) + "_parallel_size: 1\n";
    }
    text += "peft:\n  _target_: megatron.bridge.peft." + kind +
            "\n  alpha: " + std::to_string(alpha_) + "\n  dim: " + std::to_string(dim_) +
            "\n  dropout: 0.0\n  dropout_position: pre\n  normalize_moe_lora: " +
            (expert_dim_ != dim_ ? "true" : "false") +
            "\n  share_expert_adapters: " + (are_experts_equal() ? "true" : "false") +
            "\n  target_modules:\n";
    for (const std::string& target : targets) text += "  - " + target + "\n";
    return text;
  }

  DType type() const { return change_of(chosen_.begin()->second[0])->a->dtype; }

 private:
  const Change* change_of(const TableTensor& tensor) const {
    const auto found = adapter_->changes().find(tensor.key);
    return found == adapter_->changes().end() ? nullptr : &found->second;
  }
  bool has_change(const std::vector<TableTensor>& tensors) const {
    return std::ranges::any_of(tensors, [&](const auto& each) { return change_of(each); });
  }
  static bool is_of_experts(const TableTensor& tensor) {
    return tensor.row->parts[0].from[0].find("{expert}") != std::string::npos;
  }
  static bool is_fused(const std::vector<TableTensor>& tensors) {
    return std::ranges::any_of(tensors, [&](const TableTensor& tensor) {
      return tensor.key != tensors[0].key && tensor.parts[0].expert == tensors[0].parts[0].expert;
    });
  }
  bool are_equal(const TensorRef& one, const TensorRef& other) const {
    return one == other || ckpt::same_bytes(*one, adapter_->opened(), *other, adapter_->opened());
  }

  void require_lora() const {
    for (const auto& [key, change] : adapter_->changes()) {
      if (!change.a) refuse(key, "is in the adapter as a whole, which Bridge's adapters never are");
      if (change.is_flipped) refuse(key, "is an embedding, or transposed, which Bridge adapts not");
    }
  }

  // Bridge names its targets by the last part of modules' names: all of one name, or none.
  void choose_modules() {
    std::set<std::string> lasts;
    for (const auto& [module, tensors] : modules_) {
      if (has_change(tensors)) lasts.insert(last_of(module));
    }
    size_t count = 0;
    for (const auto& [module, tensors] : modules_) {
      if (!lasts.contains(last_of(module))) continue;
      if (module.starts_with(kMtp) && !has_change(tensors)) continue;
      for (const TableTensor& tensor : tensors) {
        if (change_of(tensor) == nullptr) {
          refuse(tensor.key,
                 "is not in the adapter, and Bridge adapts all of " + last_of(module) + " or none");
        }
      }
      chosen_[module] = tensors;
      count += tensors.size();
      is_canonical_ |= !have_one_a(tensors);
    }
    if (count == adapter_->changes().size()) return;
    for (const auto& [key, change] : adapter_->changes()) {
      const bool is_placed = std::ranges::any_of(chosen_, [&, &of = key](const auto& module) {
        return std::ranges::find(module.second, of, &TableTensor::key) != module.second.end();
      });
      if (!is_placed) refuse(key, "is of no matrix that Megatron has under one name");
    }
  }

  // Whether tensors that are one in Megatron have one A. Of experts they must.
  bool have_one_a(const std::vector<TableTensor>& tensors) const {
    std::map<uint32_t, const TableTensor*> firsts;
    for (const TableTensor& tensor : tensors) {
      const TableTensor& first = *firsts.emplace(tensor.parts[0].expert, &tensor).first->second;
      if (are_equal(change_of(first)->a, change_of(tensor)->a)) continue;
      if (is_of_experts(tensor) || canonical_suffix(tensor.key).empty()) {
        refuse(tensor.key, "has a different A from " + ckpt::escaped(first.key) +
                               ", with which it is one matrix in Bridge");
      }
      return false;
    }
    return true;
  }

  // Of all, but for experts, whose rank may be that by the number of those that a token gets.
  void choose_numbers() {
    for (const bool is_expert : {false, true}) {
      for (const auto& [module, tensors] : chosen_) {
        for (const TableTensor& tensor : tensors) {
          if (is_of_experts(tensor) != is_expert) continue;
          const Change& change = *change_of(tensor);
          const uint64_t rank = change.a->shape[0];
          if (dim_ == 0) dim_ = rank;
          if (expert_dim_ == 0 && is_expert) expert_dim_ = rank;
          if (alpha_ == 0) alpha_ = std::llround(double{change.scale} * static_cast<double>(rank));
          const double scale = static_cast<double>(alpha_) / static_cast<double>(rank);
          if (rank != (is_expert ? expert_dim_ : dim_) ||
              static_cast<float>(scale) != change.scale) {
            refuse(tensor.key,
                   "has a different rank or alpha from others, or one that is not a whole "
                   "number, and Bridge has one of each");
          }
        }
      }
    }
    const json chosen = args_.value("moe_router_topk", json());
    if (expert_dim_ == 0) expert_dim_ = dim_;
    if (expert_dim_ != dim_ &&
        (!chosen.is_number_unsigned() || chosen.get<uint64_t>() * expert_dim_ != dim_)) {
      refuse(kConfig, "has ranks of experts that are not those of others by moe_router_topk");
    }
  }

  bool are_experts_equal() const {
    for (const auto& [module, tensors] : chosen_) {
      for (const TableTensor& tensor : tensors) {
        if (!is_of_experts(tensor)) break;
        const auto first = std::ranges::find_if(
            tensors, [&](const TableTensor& other) { return other.row == tensor.row; });
        const Change &one = *change_of(*first), &other = *change_of(tensor);
        if (!are_equal(one.a, other.a) || !are_equal(one.b, other.b)) return false;
      }
    }
    return true;
  }

  // A chunk of a matrix, of all experts' where it is one's.
  static void add_chunk(Chunk chunk, std::optional<uint32_t> expert, TensorEntry& entry) {
    if (expert) {
      chunk.box.offsets.insert(chunk.box.offsets.begin(), *expert);
      chunk.box.sizes.insert(chunk.box.sizes.begin(), 1);
      if (chunk.view) {
        ckpt::StridedView view = *chunk.view;
        view.strides.insert(view.strides.begin(), 1);
        chunk.view = std::make_shared<const ckpt::StridedView>(std::move(view));
      }
    }
    entry.chunks.push_back(std::move(chunk));
  }

  // The factors of one module, or of a part of it that has its own.
  void add(const std::string& module, const std::vector<TableTensor>& tensors,
           FiledState& state) const {
    TensorEntry in, out;
    std::set<uint32_t> experts;
    const bool is_alone = module.find(".adapter_") != module.npos;
    for (const TableTensor& tensor : tensors) {
      const Change& change = *change_of(tensor);
      std::optional<uint32_t> expert;
      if (is_of_experts(tensor)) expert = tensor.parts[0].expert;
      in.dtype = change.a->dtype;
      out.dtype = change.b->dtype;
      in.shape = change.a->shape;
      if (experts.insert(tensor.parts[0].expert).second) {
        add_chunk(change.a->chunks.at(0), expert, in);
      }
      out.shape = change.b->shape;
      if (is_alone) {
        add_chunk(change.b->chunks.at(0), expert, out);
        continue;
      }
      const FactorRow known = row_of_factor(tensor, scope_);
      const NameScope scope = with_axes(table_, args_, {{kRankAxis, change.a->shape[0]}});
      for (const GivenPart& part : parts_of({*change.b, known.row}, scope, {0})) {
        out.shape = part.shape;
        for (const Chunk& chunk : part.chunks) add_chunk(chunk, expert, out);
      }
    }
    const bool is_stacked = is_of_experts(tensors[0]);
    const size_t end = module.find(".adapter_");
    const std::string front =
        module.substr(0, end) + ".adapter" + (end == module.npos ? "" : module.substr(end));
    for (auto& [factor, name] : {std::pair(&in, "in"), std::pair(&out, "out")}) {
      if (is_stacked) factor->shape.insert(factor->shape.begin(), experts.size());
      uint64_t count = 0;
      for (const Chunk& chunk : factor->chunks) count += ckpt::element_count(chunk.box.sizes);
      if (count != ckpt::element_count(factor->shape)) {
        refuse(module, "is not made whole by the table's rows");
      }
      const std::string key = front + ".linear_" + name + ".weight";
      const auto number = static_cast<uint32_t>(state.params.size());
      state.model.push_back({ModelEntry::What::Param, key, number, std::nullopt});
      state.params.push_back(make_param(with_key(std::move(*factor), key)));
      state.params.back().sharing = {true};
    }
  }

  const NameTable& table_;
  const json& args_;
  NameScope scope_;
  BaseTensors base_;
  std::optional<Adapter> adapter_;
  std::map<std::string, std::vector<TableTensor>> modules_, chosen_;  // of the base, by module
  bool is_canonical_ = false;
  uint64_t dim_ = 0, expert_dim_ = 0;
  int64_t alpha_ = 0;
};

}  // namespace

bool is_adapter(const OpenedTraining& folder) {
  return folder.catalog().format == ckpt::Format::Safetensors &&
         folder.source().kind_of(folder.folder() / kConfig) == ckpt::EntryKind::File;
}

HuggingFaceImport import_folder(const OpenedTraining& folder, const ImportOptions& options,
                                const SizeChange& sizes) {
  if (!is_adapter(folder)) return import_model(folder, options);
  if (!sizes.empty()) {
    throw Error(ErrorCode::InvalidArgument, {},
                "an adapter is written for one rank, and Bridge loads it at any sizes",
                "leave out --tp and other sizes");
  }
  HuggingFaceOptions names = options.names;
  const std::filesystem::path base = std::exchange(names.args_from, {});
  if (base.empty() || options.container != ckpt::Format::TorchDist) {
    throw Error(ErrorCode::InvalidArgument, {},
                "an adapter of PEFT becomes an iteration of Megatron Bridge in torch_dist, for the "
                "model that a config.json describes",
                "--to torch_dist --args-from FOLDER, the Hugging Face folder of its base");
  }
  const ImportArgs args = import_args(base, names);
  const AdapterImport made(folder, args);
  FiledState state = state_without_params(args.args, made.type(), options.container);
  made.add_to(state);
  HuggingFaceImport found{std::move(state), nullptr,
                          args.table.name + ", " + args.table.architecture + ", by config.json"};
  found.files.push_back({kBridgeConfig, {}, made.run_config()});
  return found;
}

}  // namespace optim
