#include "recording.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/printed.h>
#include <optim/checkpoint_bridge.h>
#include <optim/rule_table.h>
#include <training/gradient_dump.h>
#include <training/megatron_folders.h>
#include <training/opened_training.h>

#include "json_fields.h"
#include "step/loops/grad_stats_kernels.h"

namespace optim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUsualName = "init_and_grads.safetensors";
constexpr std::string_view kInit = "init.";

fs::path gradients_file(const fs::path& path) {
  if (!fs::is_directory(path) || fs::exists(path / ".metadata")) return path;
  if (fs::exists(path / kUsualName)) return path / kUsualName;
  std::set<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") found.insert(entry.path());
  }
  if (found.size() != 1) {
    throw ckpt::Error(
        ckpt::ErrorCode::NotFound, {.file = path.string()},
        found.empty() ? "contains no *.safetensors file"
                      : "contains several *.safetensors files and no " + std::string(kUsualName),
        "give the path of the file with the gradients");
  }
  return *found.begin();
}

// The parameter's name in a key init.NAME or grad{k}.NAME; nullopt for other keys.
std::optional<std::string_view> param_of(std::string_view key) {
  if (key.starts_with(kInit)) return key.substr(kInit.size());
  if (const auto step_key = parse_step_key("grad", key)) return step_key->rest;
  return std::nullopt;
}

// --- Megatron's dumps ---

constexpr std::string_view kDumps = "wgrads";  // beside the iterations of a run

bool is_dump(const fs::path& folder) {
  return fs::is_directory(folder) &&
         std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
           return is_gradient_file(entry.path());
         });
}

std::string iteration_folder(int64_t iteration) {
  std::string digits = std::to_string(iteration);
  const size_t width = std::max(digits.size(), kMegatronFolders.iteration_digits);
  return std::string(kMegatronFolders.iteration_prefix) + std::string(width - digits.size(), '0') +
         digits;
}

// The folder that holds a dump of each iteration; empty where `path` is none, and no run's.
fs::path folder_of_dumps(const fs::path& path) {
  for (const fs::path& folder : {path, path / kDumps}) {
    if (!fs::is_directory(folder)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const bool is_iteration =
          entry.path().filename().string().starts_with(kMegatronFolders.iteration_prefix);
      if (is_iteration && is_dump(entry.path())) return folder;
    }
  }
  return {};
}

// Those of the iterations behind `iteration`, as far as there are some without a gap.
std::vector<fs::path> dumps_behind(const fs::path& path, int64_t iteration) {
  const bool is_one = is_dump(path);
  const fs::path folder = is_one ? path.parent_path() : folder_of_dumps(path);
  std::vector<fs::path> found;
  for (int64_t next = iteration + 1; is_dump(folder / iteration_folder(next)); ++next) {
    found.push_back(folder / iteration_folder(next));
    if (is_one) break;
  }
  const std::string wanted = iteration_folder(iteration + 1);
  const bool is_other = is_one && fs::absolute(path / "").parent_path().filename() != wanted;
  if (found.empty() || is_other) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = path.string()},
                      "has no gradients of iteration " + std::to_string(iteration + 1) +
                          ", which follows the checkpoint's",
                      "expected " + wanted +
                          "/mp_rank_00.pth, ..., as --save-wgrads-interval 1 "
                          "writes them");
  }
  return found;
}

// A place in a torch.save file (RFC 6901) as the name that other files have: /grad0/NAME is
// grad0.NAME.
std::string name_of_place(std::string_view pointer) {
  std::string name;
  for (size_t i = 1; i < pointer.size(); ++i) {
    if (pointer[i] == '~' && i + 1 < pointer.size()) {
      name += pointer[++i] == '0' ? '~' : '/';
    } else {
      name += pointer[i] == '/' ? '.' : pointer[i];
    }
  }
  return name;
}

ckpt::Catalog named_catalog(const ckpt::Catalog& stored) {
  ckpt::Catalog catalog = stored;
  if (stored.format != ckpt::Format::Torch) return catalog;
  for (ckpt::TensorEntry& tensor : catalog.tensors) {
    tensor.key = name_of_place(tensor.key);
    tensor.file.clear();
  }
  catalog.index();
  return catalog;
}

}  // namespace

TensorForm form_of(const ParamInfo& param, std::initializer_list<ckpt::DType> types) {
  return {{param.shape.begin(), param.shape.end()}, types};
}

std::optional<StepKey> parse_step_key(std::string_view prefix, std::string_view key) {
  constexpr size_t kDigitsMax = 15;  // more cannot be a step number
  const size_t dot = key.find('.');
  if (!key.starts_with(prefix) || dot == key.npos || dot <= prefix.size()) return std::nullopt;
  const std::string_view digits = key.substr(prefix.size(), dot - prefix.size());
  const bool has_leading_zero = digits.size() > 1 && digits.front() == '0';
  if (digits.size() > kDigitsMax || has_leading_zero) return std::nullopt;
  int64_t step = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return std::nullopt;
    step = step * 10 + (digit - '0');
  }
  return StepKey{step, key.substr(dot + 1)};
}

std::string grad_key(int64_t step, const std::string& name) {
  return "grad" + std::to_string(step) + "." + name;
}

std::string step_key(int64_t step, std::string_view what, const std::string& name) {
  return "step" + std::to_string(step) + "." + std::string(what) + "." + name;
}

bool is_state_key(std::string_view key) {
  const size_t dot = key.find('.');
  if (dot == key.npos) return false;
  constexpr std::array<std::string_view, 3> kOthers = {"model", "fp32_param", "step"};
  const std::string_view kind = key.substr(0, dot);
  return std::ranges::find(kOthers, kind) != kOthers.end() ||
         std::ranges::find(all_states(), kind, &StateSpec::name) != all_states().end();
}

Recording::Recording(std::filesystem::path path, const ckpt::Limits& limits)
    : path_(std::move(path)), checkpoint_(open_checkpoint(path_, {{}, limits})) {}

int64_t Recording::count_steps(const ckpt::Catalog& catalog) const {
  std::map<int64_t, std::string> steps;  // and a key of each
  for (const ckpt::TensorEntry& tensor : catalog.tensors) {
    if (const auto key = parse_step_key("grad", tensor.key)) steps.emplace(key->step, tensor.key);
  }
  int64_t count = 0;
  for (const auto& [step, key] : steps) {
    if (step != count) {
      refuse(key, "expected steps 0, 1, 2, ... without a gap, found no gradient of step " +
                      std::to_string(count));
    }
    ++count;
  }
  return count;
}

const ckpt::TensorEntry& Recording::find(const std::string& key, const TensorForm& form) const {
  return find(catalog(), key, form);
}

const ckpt::TensorEntry& Recording::find(const ckpt::Catalog& catalog, const std::string& key,
                                         const TensorForm& form) const {
  const ckpt::TensorEntry* const found = catalog.find_tensor(key);
  if (found == nullptr) refuse(key, "is missing");
  if (found->shape != form.shape) {
    refuse(key, "expected the shape " + ckpt::shape_text(form.shape) + ", found " +
                    ckpt::shape_text(found->shape));
  }
  if (std::ranges::find(form.types, found->dtype) == form.types.end()) {
    refuse(key,
           "expected " +
               ckpt::joined(form.types, " or ", [](ckpt::DType type) { return ckpt::name(type); }) +
               ", found " + std::string(name(found->dtype)));
  }
  return *found;
}

void Recording::refuse(const std::string& key, const std::string& problem) const {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = path_.string(), .key = key}, problem);
}

Gradients::Gradients(const fs::path& path, const GradientsOf& of, int64_t first) : first_(first) {
  is_dump_ = is_dump(path) || !folder_of_dumps(path).empty();
  if (is_dump_) {
    read_dump(path, of);
  } else {
    read_recording(gradients_file(path));
  }
  const int64_t recorded = step_count_;
  if (first >= recorded) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      "--first " + std::to_string(first) + ": only " + std::to_string(recorded) +
                          (recorded == 1 ? " step is" : " steps are") + " recorded, from 0 on");
  }
  step_count_ -= first;
}

void Gradients::read_recording(const fs::path& file) {
  Recording recording(file);
  ckpt::Catalog catalog = named_catalog(recording.catalog());
  for (const ckpt::TensorEntry& tensor : catalog.tensors) {
    if (param_of(tensor.key) || is_state_key(tensor.key)) continue;
    recording.refuse(tensor.key,
                     "expected grad0.NAME, grad1.NAME, ... or init.NAME, found another name");
  }
  step_count_ = recording.count_steps(catalog);
  if (step_count_ == 0) recording.refuse("", "contains no gradients (grad0.NAME, ...)");
  sources_.push_back({std::move(recording), std::move(catalog)});
}

void Gradients::read_dump(const fs::path& path, const GradientsOf& of) {
  if (first_ != 0) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      "--first is of recordings; a dump of Megatron's begins with the iteration "
                      "behind the checkpoint");
  }
  for (const fs::path& folder : dumps_behind(path, of.iteration)) {
    const auto step = static_cast<int64_t>(sources_.size());
    Recording recording(folder, open_gradient_dump(folder, {}));
    ckpt::Catalog catalog;
    const std::vector<TensorRef> joined = join_gradient_dump(of.state, recording.checkpoint());
    for (size_t i = 0; i < joined.size(); ++i) {
      if (!joined[i]) continue;
      catalog.tensors.push_back(*joined[i]);
      catalog.tensors.back().key = grad_key(step, of.state.params[i].info.name);
    }
    catalog.index();
    sources_.push_back({std::move(recording), std::move(catalog)});
  }
  step_count_ = static_cast<int64_t>(sources_.size());
}

const Gradients::Source& Gradients::source_of(int64_t step) const {
  return sources_[is_dump_ ? static_cast<size_t>(step) : 0];
}

// Megatron-Core up to 0.12 registers no bias of a router, which recordings of later ones have.
static bool may_be_unregistered(std::string_view name) {
  return name.ends_with(".mlp.router.bias");
}

const ckpt::TensorEntry& Gradients::grad_entry(int64_t step, const ParamInfo& param) const {
  const Source& source = source_of(step);
  return source.recording.find(source.catalog, grad_key(first_ + step, param.name),
                               form_of(param, {ckpt::DType::Float32, ckpt::DType::BFloat16}));
}

const ckpt::TensorEntry& Gradients::initial_entry(const ParamInfo& param) const {
  const Source& source = sources_.front();
  return source.recording.find(source.catalog, std::string(kInit) + param.name,
                               form_of(param, {param.dtype}));
}

void Gradients::check(std::span<const TrainedParam> params, int64_t steps, bool with_init) const {
  std::set<std::string_view> names;
  for (const TrainedParam& param : params) {
    names.insert(param.info.name);
    if (!param.info.requires_grad) continue;
    for (int64_t step = 0; step < steps; ++step) grad_entry(step, param.info);
    if (with_init) initial_entry(param.info);
  }
  for (const Source& source : sources_) {
    for (const ckpt::TensorEntry& tensor : source.catalog.tensors) {
      const auto name = param_of(tensor.key);
      if (name && !names.contains(*name) && !may_be_unregistered(*name)) {
        source.recording.refuse(tensor.key, "does not belong to any parameter of the checkpoint");
      }
    }
  }
}

at::Tensor Gradients::grad(int64_t step, const ParamInfo& param) const {
  return load_tensor(source_of(step).recording.checkpoint(), grad_entry(step, param));
}

at::Tensor Gradients::finite_grad(int64_t step, const ParamInfo& param) const {
  at::Tensor found = grad(step, param);
  const double squares = sum_of_squares(found);
  if (!std::isfinite(squares)) {
    source_of(step).recording.refuse(
        grad_entry(step, param).key,
        "expected finite numbers, found " + std::string(std::isnan(squares) ? "NaN" : "infinity"));
  }
  return found;
}

at::Tensor Gradients::initial(const ParamInfo& param) const {
  return load_tensor(sources_.front().recording.checkpoint(), initial_entry(param));
}

fs::path Gradients::run_record() const {
  return sources_.front().recording.path().parent_path() / "run.json";
}

std::vector<double> Gradients::recorded_norms(int64_t steps) const {
  const fs::path file = run_record();
  const nlohmann::json run = read_json_file(file);
  std::vector<double> norms;
  for (int64_t step = 0; step < steps; ++step) {
    const std::string pointer = "/steps/" + std::to_string(first_ + step) + "/grad_norm";
    const nlohmann::json::json_pointer at(pointer);
    const nlohmann::json norm = run.contains(at) ? run.at(at) : nlohmann::json();
    const bool is_norm = norm.is_number() && norm.get<double>() >= 0;
    if (!is_norm) {
      throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file.string(), .key = pointer},
                        "expected a number of at least 0, found " +
                            (run.contains(at) ? found_text(norm) : "nothing"));
    }
    norms.push_back(norm.get<double>());
  }
  return norms;
}

}  // namespace optim
