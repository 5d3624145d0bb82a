// A model that another training loop has saved as a Hugging Face folder: its weights under the
// names that the run had for them, beside copies of its config.json and tokenizer.

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/cast.h>
#include <ckpt/files_beside.h>
#include <ckpt/plain_target.h>
#include <training/opened_training.h>

#include "convert/checks.h"
#include "convert/files_beside.h"
#include "convert/plain_model.h"
#include "convert/write_named.h"
#include "huggingface/config_args.h"
#include "huggingface/export.h"
#include "huggingface/import.h"
#include "huggingface/model_files.h"
#include "huggingface/quantized.h"
#include "state/computed_tensors.h"
#include "state/words.h"

namespace optim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kConfigFile = "config.json";
constexpr std::string_view kOfVerl = "huggingface";  // beside files of ranks: all but weights
constexpr std::string_view kWeightSuffixes[] = {".safetensors", ".bin", ".pt", ".index.json"};
constexpr std::string_view kOfAdapters = "base_model.model.";

// Where the model's config.json is.
struct ModelFolder {
  fs::path path;
  std::string below;  // the source's folder: "huggingface/"; of one that was named: empty
  bool is_named = false;
};

ModelFolder find_model_folder(const OpenedTraining& source, const fs::path& named) {
  if (!named.empty() && !is_folder(named)) {
    throw Error(ErrorCode::InvalidArgument, {.file = named.string(), .key = {}},
                "is a file; of a plain state dict --args-from names a Hugging Face folder of the "
                "same model, with its config.json");
  }
  if (!named.empty()) return {named, {}, true};
  for (const std::string& below : {std::string(kOfVerl) + "/", std::string()}) {
    const fs::path folder = source.folder() / below;
    if (source.source().kind_of(folder / kConfigFile) == ckpt::EntryKind::File)
      return {folder, below};
  }
  throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
              "is a plain state dict without config.json, which says what the model is",
              "--args-from FOLDER names a Hugging Face folder of the same model; --to safetensors "
              "--model-only writes the weights alone");
}

bool is_weights(const std::string& path) {
  return std::ranges::any_of(kWeightSuffixes,
                             [&](std::string_view suffix) { return path.ends_with(suffix); });
}

// What is in the checkpoint's own folder does not lead out of it.
std::vector<ckpt::TargetFile> files_of_model(const OpenedTraining& source,
                                             const ModelFolder& folder) {
  if (folder.is_named) return copies_in(folder.path, model_and_tokenizer_files());
  std::vector<std::string_view> names = model_and_tokenizer_files();
  if (!folder.below.empty()) names = {kOfVerl};
  std::vector<ckpt::TargetFile> files;
  for (ckpt::TargetFile& file : ckpt::copies_of_beside(source, names, kModelFilesBytesMax)) {
    if (!file.path.starts_with(folder.below) || is_weights(file.path)) continue;
    file.path.erase(0, folder.below.size());
    if (!file.path.starts_with("../")) files.push_back(std::move(file));
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

// The model's tensors under its own names, each in one piece.
FolderTensors tensors_of_model(const OpenedTraining& source, ckpt::KeyRules rules) {
  FolderTensors made;
  made.catalog.format = source.catalog().format;
  made.catalog.files = source.catalog().files;
  ComputedTensors whole(source);
  const std::vector<std::string> keys = plain_keys(source);
  std::vector<ckpt::KeyName> names;
  for (const std::string& key : keys) names.push_back({{}, key});
  rules.resolve(names);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!rules.accepts(keys[i])) continue;
    const auto tensor = std::make_shared<const TensorEntry>(source.catalog().tensors[i]);
    made.catalog.tensors.push_back(whole.add(rules.renamed(keys[i]), tensor->dtype, tensor->shape,
                                             elements_of(source, tensor)));
  }
  made.products = whole.payloads();
  made.catalog.index();
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

bool has_table(const std::string& architecture) {
  return std::ranges::any_of(known_tables(), [&](const std::string& name) {
    return find_table(name).architecture == architecture;
  });
}

// Whether names and shapes are those that the architecture has; throws Unsupported where a table
// says that they are not.
struct NamesCompared {
  std::string names;         // ConvertReport::names
  std::string why_not = {};  // they were not compared
};

NamesCompared compare_names(const OpenedTraining& source, const FolderTensors& tensors,
                            const fs::path& folder, const std::string& table) {
  const std::string architecture = architecture_of(read_object(folder / kConfigFile));
  const std::string own = (architecture.empty() ? "" : architecture + ", ") + "names of the run";
  if (table == kOwnNames) return {own};
  const bool is_asked_for = table != HuggingFaceOptions().names;
  if (!is_asked_for && !has_table(architecture)) {
    return {own, architecture.empty() ? "config.json names no architecture"
                                      : "no table is built in for " + architecture};
  }
  const HuggingFaceOptions names{.names = table};
  ImportArgs args;
  try {
    args = import_args(folder, names);
  } catch (const Error& error) {
    if (is_asked_for || error.code() != ErrorCode::Unsupported) throw;
    return {own, error.where().key + " " + error.problem()};
  }
  try {
    return {import_tensors(source, tensors, std::move(args), {names}).names};
  } catch (Error& error) {
    if (error.code() == ErrorCode::Unsupported)
      error.hinted("--names none writes the names that the run had");
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

void tell_not_compared(const NamesCompared& compared, const OpenedTraining& source, bool strict,
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
  const FolderTensors tensors = tensors_of_model(source, spec.keys);
  refuse_adapter(source, tensors);
  const NamesCompared compared = compare_names(source, tensors, folder.path, names.names);
  ckpt::Target target = ckpt::make_target(source, spec);
  if (!is_told) target.warnings.push_back(text_of(model));
  tell_not_compared(compared, source, options.base.strict, target);
  tell_other_type(tensors, options.base, read_object(folder.path / kConfigFile), target);
  add_model_files(source, folder, names.tokenizer_from, target);
  list_files_beside(source, target);
  for (ckpt::NotCarried& lost : target.not_carried) {  // a folder with weights of its own
    if (lost.what.ends_with(kOfVerl)) lost.what = "weights in " + lost.what;
  }
  job.check_result = plain_check(source, spec, target.not_carried, options.base);
  ConvertReport report = write(job, std::move(target), options);
  report.names = compared.names;
  return report;
}

}  // namespace optim
