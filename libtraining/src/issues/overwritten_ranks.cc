// Which parameters lost their state when context-parallel ranks wrote to one file name.
#include "issues/overwritten_ranks.h"

#include <map>
#include <set>
#include <utility>

#include <training/layer_wise_checkpoint.h>
#include <training/megatron_folders.h>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/placement.h"
#include "grid/rank_files.h"
#include "model/tensor_names.h"
#include "state/not_checked.h"

namespace optim {
namespace {

constexpr const char* kWhatIsLeft = "--model-only carries the model's weights, which are complete";

// What one of the ranks that share a file name wrote.
struct Writer {
  uint32_t context_rank = 0;
  std::vector<std::string> params;
  std::multiset<ckpt::Extents> shapes;  // of their masters on this rank
};

class LostParams {
 public:
  explicit LostParams(const OpenedTraining& model)
      : model_(model), state_(read_training_state(model, {.model_only = true})) {}

  std::vector<ckpt::Finding> run() {
    for (const auto& [file, writers] : writers_of_files()) {
      if (writers.size() > 1) compare(file, writers);
    }
    return std::move(findings_);
  }

 private:
  std::map<std::string, std::vector<Writer>> writers_of_files() {
    for (TrainedParam& param : state_.params) {
      if (is_buffer(state_, param.info.name)) param.info.requires_grad = false;
    }
    const std::vector<ParamGroup> groups =
        group_params(state_.args(), state_.grid.sizes, state_.params);
    const Placement placement(state_, state_.grid);
    const RankDeals deals(state_, placement, groups, {});
    std::map<std::string, std::vector<Writer>> files;
    for (const WorldRank& rank : ranks_of(state_.grid)) {
      Writer writer{rank.at.cp, {}, {}};
      for (const std::vector<HeldEntry>& group : deals.owned(rank.at)) {
        for (const HeldEntry& held : group) {
          const uint32_t param = state_.model[held.entry].param;
          writer.params.push_back(state_.params[param].info.name);
          writer.shapes.insert(placement.shape_on_rank(param));
        }
      }
      files[rank.optimizer_file()].push_back(std::move(writer));
    }
    return files;
  }

  // Of the masters in a file; nullopt where it cannot be read.
  std::optional<std::multiset<ckpt::Extents>> shapes_in(const std::string& file) const {
    return unless_damaged([&] {
      const auto opened =
          open_checkpoint(model_.folder() / file, {.iteration = {}, .limits = model_.limits()});
      std::multiset<ckpt::Extents> shapes;
      for (const ckpt::TensorEntry& tensor : opened.catalog().tensors) {
        if (is_numbered_master(tensor)) shapes.insert(tensor.shape);
      }
      return shapes;
    });
  }

  void compare(const std::string& file, const std::vector<Writer>& writers) {
    const auto found = shapes_in(file);
    const Writer* left = nullptr;  // the one whose state is in the file
    for (const Writer& writer : writers) {
      if (!found || writer.shapes != *found) continue;
      if (left != nullptr) return;  // another one would fit as well
      left = &writer;
    }
    if (found && left == nullptr) return;  // of none of them
    for (const Writer& writer : writers) {
      if (&writer == left) continue;
      const std::string rank = "context-parallel rank " + std::to_string(writer.context_rank);
      const std::string how =
          left == nullptr ? "in a file that several ranks wrote at once"
                          : "which rank " + std::to_string(left->context_rank) + " overwrote";
      for (const std::string& param : writer.params) {
        findings_.push_back(
            {ckpt::CheckKind::Meaning,
             ckpt::Severity::Note,
             {model_.shown_name(file), std::nullopt, param},
             "its master and optimizer state are lost: " + rank + " saved them here, " + how,
             findings_.empty() ? kWhatIsLeft : ""});
      }
    }
  }

  const OpenedTraining& model_;
  TrainingState state_;
  std::vector<ckpt::Finding> findings_;
};

// Hides the rank files of optimizers.
class ModelFolder final : public ckpt::Folder {
 public:
  explicit ModelFolder(std::shared_ptr<const ckpt::Folder> disk) : disk_(std::move(disk)) {}

  std::vector<std::string> list(const std::filesystem::path& folder) const override {
    std::vector<std::string> names = disk_->list(folder);
    std::erase_if(names, [](const std::string& name) {
      return name.starts_with(kRankFileStart) || name == "distrib_optim.pt";
    });
    return names;
  }
  Entry stat(const std::filesystem::path& path) const override { return disk_->stat(path); }
  Entry stat_entry(const std::filesystem::path& path) const override {
    return disk_->stat_entry(path);
  }
  std::unique_ptr<ckpt::OpenedFile> open(const std::filesystem::path& folder,
                                         const Name& name) const override {
    return disk_->open(folder, name);
  }
  void check_inside(const std::filesystem::path& folder, const std::string& name) const override {
    disk_->check_inside(folder, name);
  }
  std::filesystem::path resolved(const std::filesystem::path& path) const override {
    return disk_->resolved(path);
  }

 private:
  std::shared_ptr<const ckpt::Folder> disk_;
};

}  // namespace

std::string overwritten_hint(const RunArgs& args) {
  return "the " + std::to_string(args.size("context_parallel_size")) +
         " context-parallel ranks of a data-parallel rank write to one file name in format torch; "
         "only the last one's state is left: save such runs as torch_dist";
}

std::optional<ckpt::Finding> find_overwritten(const std::filesystem::path& path,
                                              const ckpt::Error& error,
                                              const ckpt::Limits& limits) {
  const std::filesystem::path file = path / error.where().file;
  const bool is_rank_file = file.filename().string().starts_with(kRankFileStart);
  if (error.code() != ckpt::ErrorCode::Corrupt || !is_rank_file) return std::nullopt;
  try {
    const auto model =
        open_checkpoint(file.parent_path() / kModelFileName, {.iteration = {}, .limits = limits});
    const RunArgs& args = model.args();
    if (!args.is_true(kLayerWiseArg) || args.size("context_parallel_size") < 2) return std::nullopt;
    return ckpt::Finding{ckpt::CheckKind::Structure, ckpt::Severity::Damage, error.where(),
                         std::string(kOverwritten) + ": " + error.problem(),
                         overwritten_hint(args)};
  } catch (const ckpt::Error& unreadable) {
    if (unreadable.code() == ckpt::ErrorCode::IoFailure) throw;
    return std::nullopt;  // nothing says how it came about
  }
}

std::shared_ptr<const ckpt::Folder> model_folder(const std::filesystem::path& path) {
  return std::make_shared<ModelFolder>(ckpt::source_of(path));
}

bool may_be_overwritten(const OpenedTraining& checkpoint) {
  if (checkpoint.catalog().format != ckpt::Format::Torch || !is_megatron(checkpoint)) return false;
  const RunArgs& args = checkpoint.args();
  return args.is_true(kLayerWiseArg) && args.size("context_parallel_size") > 1;
}

std::vector<ckpt::Finding> find_lost_params(const std::filesystem::path& path,
                                            ckpt::OpenOptions options) {
  options.source = model_folder(path);
  auto found = unless_damaged([&] {
    const OpenedTraining model = open_checkpoint(path, std::move(options));
    return LostParams(model).run();
  });
  return found ? std::move(*found) : std::vector<ckpt::Finding>();
}

}  // namespace optim
