#include "issues/lost_common_state.h"

#include <algorithm>
#include <utility>

#include <ckpt/checkpoint.h>
#include <training/key_kind.h>
#include <training/megatron_folders.h>
#include <training/opened_training.h>

#include "args/common_state.h"
#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCommonFile = kMegatronFolders.common_file;

class FolderWithCommon final : public ckpt::Folder {
 public:
  explicit FolderWithCommon(fs::path other) : other_(std::move(other)) {}

  std::vector<std::string> list(const fs::path& folder) const override {
    std::vector<std::string> names = disk_->list(folder);
    const bool is_store = std::ranges::binary_search(names, ".metadata");
    const auto place = std::ranges::lower_bound(names, kCommonFile);
    const bool has_common = place != names.end() && *place == kCommonFile;
    if (is_store && !has_common) names.insert(place, std::string(kCommonFile));
    return names;
  }
  Entry stat(const fs::path& path) const override { return disk_->stat(behind(path)); }
  Entry stat_entry(const fs::path& path) const override { return disk_->stat_entry(behind(path)); }
  std::unique_ptr<ckpt::OpenedFile> open(const fs::path& folder, const Name& name) const override {
    return disk_->open(name.path == kCommonFile ? other_ : folder, name);
  }
  void check_inside(const fs::path& folder, const std::string& name) const override {
    disk_->check_inside(name == kCommonFile ? other_ : folder, name);
  }
  fs::path resolved(const fs::path& path) const override { return disk_->resolved(path); }

 private:
  fs::path behind(const fs::path& path) const {
    return path.filename() == kCommonFile ? other_ / kCommonFile : path;
  }

  fs::path other_;
  std::shared_ptr<const ckpt::Folder> disk_ = ckpt::source_of(other_);
};

bool has_states(const ckpt::Catalog& catalog) {
  const auto is_of_state = [](const TensorEntry& tensor) {
    return tensor.file.empty() && kind_of_key(tensor.file, tensor.key) == KeyKind::OptimizerState;
  };
  return std::ranges::any_of(catalog.tensors, is_of_state) ||
         std::ranges::any_of(catalog.objects, is_state_object);
}

std::optional<std::string> fault_of(const OpenedTraining& checkpoint) {
  if (checkpoint.catalog().format != ckpt::Format::TorchDist || !is_megatron(checkpoint)) {
    return std::nullopt;
  }
  const CommonState* const common = checkpoint.common_state();
  if (common == nullptr) return std::string(kCommonFile) + " is missing";
  const Value root = common->document->tree.root();
  if (!root.is(Kind::Dict)) return common->file + " is not a dict";
  if (!root.find("args")) return common->file + " has no 'args'";
  if (!root.find("optimizer") && has_states(checkpoint.catalog())) {
    return common->file + " has no 'optimizer', of which there is state";
  }
  return std::nullopt;
}

}  // namespace

std::shared_ptr<const ckpt::Folder> with_common_of(const fs::path& other,
                                                   const ckpt::Limits& limits) {
  const OpenedTraining opened =
      open_checkpoint(other, {.iteration = std::nullopt, .limits = limits});
  if (opened.document(kCommonFile) == nullptr) {
    throw Error(ErrorCode::Unsupported, {.file = opened.shown_path(), .key = {}},
                "has no common.pt, so that no common state can be taken from it",
                "a torch_dist folder that Megatron wrote in the same run, before 0.19");
  }
  if (const auto fault = fault_of(opened)) {
    throw Error(ErrorCode::Corrupt, {.file = opened.shown_path(), .key = {}},
                *fault + ", so that it cannot be taken from there");
  }
  return std::make_shared<const FolderWithCommon>(opened.folder());
}

std::optional<std::string> fault_of_common_state(const fs::path& path,
                                                 const FindRepairsOptions& options) {
  try {
    return fault_of(
        open_checkpoint(path, {.iteration = options.iteration, .limits = options.limits}));
  } catch (const Error& error) {
    const bool is_unusable =
        error.code() == ErrorCode::Corrupt || error.code() == ErrorCode::Unsupported;
    if (is_unusable && error.where().file.ends_with(kCommonFile)) return error.what();
    throw;
  }
}

std::optional<OtherIteration> other_iteration(const OpenedTraining& checkpoint) {
  const CommonState* const common = checkpoint.common_state();
  const auto named = checkpoint.catalog().iteration;
  const auto stated = common ? common->document->tree.root().find("iteration") : std::nullopt;
  if (!named || !stated || !stated->is(Kind::Int) || stated->as_int() == *named) {
    return std::nullopt;
  }
  return OtherIteration{stated->as_int(), *named};
}

}  // namespace optim
