// A model that another training loop has saved as a Hugging Face folder: its weights under the
// names that the run had for them, beside copies of its config.json and tokenizer.

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/cast.h>
#include <ckpt/folder.h>
#include <ckpt/plain_target.h>
#include <ckpt/safetensors_target.h>
#include <training/opened_training.h>

#include "convert/checks.h"
#include "convert/files_beside.h"
#include "convert/plain_model.h"
#include "convert/write_named.h"
#include "huggingface/config_args.h"
#include "huggingface/export.h"
#include "huggingface/fused_experts.h"
#include "huggingface/import.h"
#include "huggingface/model_files.h"
#include "huggingface/quantized.h"
#include "state/computed_tensors.h"
#include "state/read_range.h"
#include "state/words.h"

namespace optim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kConfigFile = "config.json";
constexpr std::string_view kWeightSuffixes[] = {".safetensors", ".bin", ".pt", ".index.json"};
constexpr std::string_view kOfAdapters = "base_model.model.";

// Where the model's config.json is.
struct ModelFolder {
  fs::path path;
  bool is_named = false, is_of_verl = false;
};

ModelFolder find_model_folder(const OpenedTraining& source, const fs::path& named) {
  if (!named.empty() && !is_folder(named)) {
    throw Error(ErrorCode::InvalidArgument, {.file = named.string(), .key = {}},
                "is a file; of a plain state dict --args-from names a Hugging Face folder of the "
                "same model, with its config.json");
  }
  if (!named.empty()) return {named, true};
  const auto has_config = [&](const fs::path& folder) {
    return source.source().kind_of(folder / kConfigFile) == ckpt::EntryKind::File;
  };
  if (has_config(source.folder() / kFolderOfVerl))
    return {source.folder() / kFolderOfVerl, false, true};
  if (has_config(source.folder())) return {source.folder()};
  throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
              "is a plain state dict without config.json, which says what the model is",
              "--args-from FOLDER names a Hugging Face folder of the same model; --to safetensors "
              "--model-only writes the weights alone");
}

bool is_weights(const std::string& name) {
  return std::ranges::any_of(kWeightSuffixes,
                             [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// What is in the checkpoint's own folder does not lead out of it.
std::vector<ckpt::TargetFile> files_of_model(const OpenedTraining& source,
                                             const ModelFolder& folder) {
  if (folder.is_named) return copies_in(folder.path, model_and_tokenizer_files());
  std::vector<std::string> names;
  if (folder.is_of_verl) names = source.source().list(folder.path);
  for (const std::string_view name : model_and_tokenizer_files()) {
    if (!folder.is_of_verl) names.emplace_back(name);
  }
  std::vector<ckpt::TargetFile> files;
  for (const std::string& name : names) {
    if (is_weights(name) || source.source().kind_of(folder.path / name) != ckpt::EntryKind::File) {
      continue;
    }
    const auto links =
        source.limits().follow_links ? ckpt::Links::MayLeadOut : ckpt::Links::StayInside;
    const auto file = source.source().open(folder.path, {name, {}, links});
    if (file->size_bytes() > kModelFilesBytesMax) continue;
    std::string text(file->size_bytes(), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(text)));
    files.push_back({name, {}, std::move(text)});
  }
  return files;
}

void add_model_files(const OpenedTraining& source, const ModelFolder& folder,
                     const fs::path& tokenizer_from, ckpt::Target& target) {
  std::vector<ckpt::TargetFile> files = files_of_model(source, folder);
  if (std::ranges::find(files, kConfigFile, &ckpt::TargetFile::path) == files.end()) {
    throw Error(ErrorCode::Unsupported, {.file = (folder.path / kConfigFile).string(), .key = {}},
                "cannot be copied", "--args-from FOLDER names another folder of the same model");
  }
  const auto is_of_tokenizer = [](const ckpt::TargetFile& file) {
    return std::ranges::find(kTokenizerFiles, file.path) != std::end(kTokenizerFiles);
  };
  if (!tokenizer_from.empty()) {
    std::erase_if(files, is_of_tokenizer);
    std::ranges::move(copies_of_tokenizer(tokenizer_from), std::back_inserter(files));
  } else if (std::ranges::none_of(files, is_of_tokenizer)) {
    target.warnings.push_back("no tokenizer: give --tokenizer-from");
  }
  target.files.insert(target.files.begin(), std::make_move_iterator(files.begin()),
                      std::make_move_iterator(files.end()));
}

// Its tensors under its own names, each in one piece.
struct ModelTensors {
  FolderTensors all;
  bool are_experts_split = false;
};

// `splits_experts`: where they are in one tensor.
ModelTensors tensors_of_model(const OpenedTraining& source, ckpt::KeyRules rules,
                              bool splits_experts) {
  ModelTensors made;
  ckpt::Catalog& catalog = made.all.catalog;
  catalog.format = source.catalog().format;
  catalog.files = source.catalog().files;
  ComputedTensors whole(source);
  const std::vector<std::string> keys = plain_keys(source);
  std::vector<ckpt::KeyName> names;
  for (const std::string& key : keys) names.push_back({{}, key});
  rules.resolve(names);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!rules.accepts(keys[i])) continue;
    const TensorEntry& tensor = source.catalog().tensors[i];
    const std::string key = rules.renamed(keys[i]);
    std::vector<ExpertWeight> parts;
    if (splits_experts) parts = weights_of_experts(key, tensor.shape);
    made.are_experts_split |= !parts.empty();
    if (parts.empty()) parts = {{key, 0, tensor.shape}};
    for (const auto& [name, first, shape] : parts) {
      catalog.tensors.push_back(
          whole.add(name, tensor.dtype, shape,
                    [&source, &tensor, first](uint64_t begin, std::span<std::byte> out) {
                      read_range(source, tensor, first + begin, out);
                    }));
    }
  }
  made.all.products = whole.payloads();
  catalog.index();
  return made;
}

void refuse_adapter(const OpenedTraining& source, const FolderTensors& tensors) {
  const auto found = std::ranges::find_if(tensors.catalog.tensors, [](const TensorEntry& tensor) {
    return tensor.key.starts_with(kOfAdapters) || tensor.key.find(".lora_A.") != std::string::npos;
  });
  if (found == tensors.catalog.tensors.end()) return;
  throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = found->key},
              "is of a model with an adapter of PEFT around it, which has other names than the "
              "architecture's",
              "--to safetensors --model-only writes all of them under these names");
}

// What names and shapes are compared with.
struct NamesOfModel {
  std::string text;              // ConvertReport::names
  std::optional<ImportArgs> by;  // nullopt: they are not compared
  std::string why_not = {};      // empty: as was asked for
  bool has_experts_apart = false;
};

NamesOfModel names_of_model(const fs::path& folder, const json& config, const std::string& table) {
  const std::string architecture = architecture_of(config);
  const std::string own = (architecture.empty() ? "" : architecture + ", ") + "names of the run";
  if (table == kOwnNames) return {own, {}};
  const bool is_asked_for = table != HuggingFaceOptions().names;
  const auto known = is_asked_for ? find_table(table) : table_of_architecture(architecture);
  if (!known) {
    return {own,
            {},
            architecture.empty() ? "config.json names no architecture"
                                 : "no table is built in for " + architecture};
  }
  const bool is_apart = has_experts_apart(*known);
  try {
    return {{}, import_args(folder, {.names = table}), {}, is_apart};
  } catch (const Error& error) {
    if (is_asked_for || error.code() != ErrorCode::Unsupported) throw;
    return {own, {}, error.where().key + ": " + error.problem(), is_apart};
  }
}

// Throws Unsupported where a table says that they are not those of the architecture.
void compare_names(const OpenedTraining& source, const FolderTensors& tensors,
                   NamesOfModel& names) {
  if (!names.by) return;
  try {
    names.text = import_tensors(source, tensors, *names.by, {HuggingFaceOptions()}).names;
  } catch (Error& error) {
    if (error.code() == ErrorCode::Unsupported) {
      error.hinted("--names none writes the names that the run had");
    }
    throw;
  }
}

// transformers loads weights in the type that config.json says.
void tell_other_type(const FolderTensors& tensors, const ckpt::ConvertOptions& options,
                     const json& config, ckpt::Target& target) {
  const json stated = config.value("dtype", config.value("torch_dtype", json()));
  const std::string type(ckpt::name(type_of_most(tensors.catalog.tensors)));
  if (!options.types.empty() || !stated.is_string() || stated == type) return;
  target.warnings.push_back("weights are " + type + ", config.json says " +
                            ckpt::escaped(stated.get<std::string>()) + ": --dtype rounds them");
}

void tell_not_compared(const NamesOfModel& compared, const OpenedTraining& source, bool strict,
                       ckpt::Target& target) {
  if (compared.why_not.empty()) return;
  const std::string problem =
      "names and shapes were not compared with the architecture's: " + compared.why_not;
  if (!strict) return target.warnings.push_back(problem);
  throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}}, problem,
              "--names none writes the names that the run had");
}

// By keys of the result, where no rules change them.
std::vector<ckpt::TypeRule> types_of(const PlainModel& model, std::vector<ckpt::TypeRule> types) {
  for (ckpt::TypeRule& rule : types) {
    if (rule.type == DType::Float8E4M3FN) {
      throw Error(ErrorCode::Unsupported, {},
                  "--dtype fp8-block128 is for checkpoints of Megatron, whose modules say which "
                  "weights are of linear layers");
    }
    if (!rule.keys.empty() && !model.keys.empty()) rule.keys = model.keys + "." + rule.keys;
  }
  return types;
}

// The same state with each expert's weights alone, as a table's folders have them.
std::vector<HuggingFaceExport::Tensor> split_experts(const FolderTensors& tensors,
                                                     const ConvertOptions& options,
                                                     ckpt::Target& target) {
  ckpt::SafetensorsSpec spec;
  spec.as_folder = true;
  spec.file_bytes_max = options.hugging_face->shard_bytes;
  ckpt::TypeChange types(options.base.types);
  std::vector<HuggingFaceExport::Tensor> made;
  for (const TensorEntry& tensor : tensors.catalog.tensors) {
    const TensorRef entry = types.apply(std::make_shared<const TensorEntry>(tensor), tensor.key);
    spec.tensors.push_back({tensor.key, {entry, ckpt::whole(tensor.shape)}});
    made.push_back({tensor.key, {entry, tensor.shape}});
  }
  target.files = ckpt::make_safetensors_target(std::move(spec)).files;
  types.report(target);
  target.warnings.push_back("experts are taken apart, as transformers saves them");
  return made;
}

}  // namespace

ConvertReport export_plain(Job job, const ConvertOptions& options) {
  const OpenedTraining& source = job.source;
  const HuggingFaceOptions& names = *options.hugging_face;
  if (names.masters) {
    throw Error(ErrorCode::InvalidArgument, {},
                "--weights master is for checkpoints of Megatron; a plain state dict has the "
                "model's weights alone");
  }
  const ModelFolder folder = find_model_folder(source, names.args_from);
  const bool is_told = !options.base.keys.empty();
  const PlainModel model = is_told ? PlainModel{} : find_plain_model(source);
  ckpt::TargetSpec spec{ckpt::Format::Safetensors, true,
                        is_told ? options.base.keys : rules_of_model(model, {}),
                        types_of(model, options.base.types)};
  spec.file_bytes_max = names.shard_bytes;
  const json config = read_object(folder.path / kConfigFile);
  NamesOfModel named = names_of_model(folder.path, config, names.names);
  const ModelTensors tensors = tensors_of_model(source, spec.keys, named.has_experts_apart);
  refuse_adapter(source, tensors.all);
  compare_names(source, tensors.all, named);
  if (tensors.are_experts_split) spec.types = {};
  ckpt::Target target = ckpt::make_target(source, spec);
  std::vector<HuggingFaceExport::Tensor> split;
  if (tensors.are_experts_split) split = split_experts(tensors.all, options, target);
  if (!is_told) target.warnings.push_back(text_of(model));
  tell_not_compared(named, source, options.base.strict, target);
  tell_other_type(tensors.all, options.base, config, target);
  add_model_files(source, folder, names.tokenizer_from, target);
  list_files_beside(source, target);
  for (ckpt::NotCarried& lost : target.not_carried) {  // a folder with weights of its own
    if (lost.what.ends_with(kFolderOfVerl)) lost.what = "weights in " + lost.what;
  }
  if (tensors.are_experts_split) job.repaired = tensors.all.products;
  job.check_result = split.empty() ? plain_check(source, spec, target.not_carried, options.base)
                                   : export_check(std::move(split), job.payloads(),
                                                  target.not_carried, options.base);
  ConvertReport report = write(job, std::move(target), options);
  report.names = named.text;
  return report;
}

}  // namespace optim
