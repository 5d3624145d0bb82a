// Megatron names the files of `torch` by rank (megatron/training/checkpointing.py):
//   mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt        of each tensor, pipeline and expert rank
//   mp_rank_TT[_PPP][_EEE]/distrib_optim.pt          of a DistributedOptimizer
//   mp_rank_TT[_PPP][_EEE]/layer_wise_optimizer_D.pt of each data-parallel rank D
// D does not count context-parallel ranks: these write one file, and the last one's is left.
#include <training/megatron_folders.h>

#include <algorithm>
#include <map>
#include <set>

#include "args/run_args.h"
#include "grid/rank_files.h"
#include "issues/overwritten_ranks.h"
#include "model/tensor_names.h"
#include "state/not_checked.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {
namespace {

constexpr uint64_t kWorldSizeMax = uint64_t{1} << 20;

// In the order of their world ranks; empty where args do not say how ranks were numbered.
std::vector<WorldRank> ranks_of_run(const RunArgs& args) {
  if (!args.are_there() || args.is_true("use_tp_pp_dp_mapping")) return {};
  RunGrid grid;
  ParallelSizes& sizes = grid.sizes;
  sizes.tensor_parallel = args.size("tensor_model_parallel_size");
  sizes.pipeline_parallel = args.size("pipeline_model_parallel_size");
  sizes.context_parallel = args.size("context_parallel_size");
  sizes.data_parallel = args.size("data_parallel_size");
  sizes.expert_parallel = args.size("expert_model_parallel_size");
  sizes.expert_tensor_parallel = args.size("expert_tensor_parallel_size");
  const auto ranks = unless_damaged([&] {
    const uint64_t world = sizes.world();
    const bool is_stated = world == args.size("world_size") && world <= kWorldSizeMax;
    return is_stated ? ranks_of(grid) : std::vector<WorldRank>();
  });
  return ranks.value_or(std::vector<WorldRank>());  // sizes that make no grid
}

class RankFolderCheck {
 public:
  RankFolderCheck(const OpenedTraining& checkpoint, VerifyReport& report)
      : checkpoint_(checkpoint),
        report_(report),
        args_(checkpoint.args()),
        ranks_(ranks_of_run(args_)) {}

  std::vector<std::string> missing_files() const {
    if (ranks_.empty()) return folders_without_model();
    std::vector<std::string> missing;
    const std::set<std::string_view> known = known_files();
    for (const std::string& file : expected_files()) {
      if (!known.contains(file)) missing.push_back(file);
    }
    return missing;
  }

  void run() {
    for (const std::string& file : missing_files()) {
      find(file, "this file of the checkpoint is missing", {});
      report_.findings.findings.back().is_incomplete = true;
    }
    if (ranks_.empty()) {
      report_.not_checked.push_back(
          {kRankFiles, "the checkpoint's args do not say how the ranks were numbered"});
      return;
    }
    find_unexpected();
    if (args_.is_true(kLayerWiseArg)) check_masters();
  }

 private:
  // --- files ---

  // Where a rank's optimizer is there, and its model is not: whatever the args say.
  std::vector<std::string> folders_without_model() const {
    const std::set<std::string_view> known = known_files();
    std::set<std::string> missing;
    for (const std::string_view file : known) {
      const size_t slash = file.find('/');
      if (slash == file.npos) continue;
      const std::string_view name = file.substr(slash + 1);
      const std::string model =
          std::string(file.substr(0, slash + 1)) + std::string(kModelFileName);
      const bool is_optimizer = name.starts_with(kRankFileStart) || name == kFlatFileName;
      if (is_optimizer && !known.contains(model)) missing.insert(model);
    }
    return {missing.begin(), missing.end()};
  }

  std::set<std::string> expected_files() const {
    std::set<std::string> files;
    const bool has_state = !args_.is_true("no_save_optim") &&
                           checkpoint_.folder().filename() != "release" && holds_optimizer();
    for (const WorldRank& rank : ranks_) {
      files.insert(rank.model_file());
      if (has_state && args_.is_true(kLayerWiseArg)) {
        files.insert(rank.optimizer_file());
      } else if (has_state && args_.is_true("use_distributed_optimizer")) {
        files.insert(rank.flat_file());
      }
    }
    return files;
  }

  // A model file repeats the settings of its optimizers, unless the model was saved alone.
  bool holds_optimizer() const {
    const auto& files = checkpoint_.catalog().files;
    return std::ranges::any_of(files, [this](const ckpt::FileEntry& file) {
      if (!file.path.ends_with(kModelFileName)) return file.path.starts_with("mp_rank_");
      const Document* const document = checkpoint_.document(file.path);
      const bool is_dict = document != nullptr && document->tree.root().is(Kind::Dict);
      return is_dict && document->tree.root().find("optimizer");
    });
  }

  std::set<std::string_view> known_files() const {
    std::set<std::string_view> known;
    for (const ckpt::FileEntry& file : checkpoint_.catalog().files) known.insert(file.path);
    return known;
  }

  void find_unexpected() {
    const std::set<std::string> expected = expected_files();
    for (const std::string_view file : known_files()) {
      const std::string_view name = file.substr(std::min(file.rfind('/') + 1, file.size()));
      const bool is_rank_file = name == kModelFileName || name.starts_with(kRankFileStart);
      if (!is_rank_file || expected.contains(std::string(file))) continue;
      find(std::string(file), "unexpected rank file: no rank of this layout writes it",
           "it may be left over from a run with more ranks or another layout");
    }
  }

  // --- masters ---

  struct Counts {
    uint64_t weights = 0, masters = 0;
    std::string first_folder;  // of the expert ranks, which all hold what is not expert
  };

  // Expert ranks share what is not expert: its masters are dealt over all of their folders.
  std::string family_of(std::string_view folder) const {
    return std::string(args_.size("expert_model_parallel_size") > 1
                           ? folder.substr(0, folder.rfind('_'))
                           : folder);
  }

  static bool is_weight(const TensorEntry& tensor) {
    return tensor.file.ends_with(kModelFileName) && tensor.key.starts_with("/model") &&
           (tensor.dtype == DType::BFloat16 || tensor.dtype == DType::Float16);
  }

  static bool is_master(const TensorEntry& tensor) {
    return !tensor.file.ends_with(kModelFileName) && is_numbered_master(tensor);
  }

  std::map<std::string, Counts> count_masters() const {
    std::map<std::string, Counts> families;
    for (const TensorEntry& tensor : checkpoint_.catalog().tensors) {
      const std::string folder = tensor.file.substr(0, tensor.file.find('/'));
      Counts& counts = families[family_of(folder)];
      if (counts.first_folder.empty() || folder < counts.first_folder) {
        counts.first_folder = folder;
      }
    }
    for (const TensorEntry& tensor : checkpoint_.catalog().tensors) {
      const std::string folder = tensor.file.substr(0, tensor.file.find('/'));
      Counts& counts = families[family_of(folder)];
      const bool is_expert = tensor.key.find(".experts.") != std::string::npos;
      counts.masters += is_master(tensor) ? 1 : 0;
      counts.weights += is_weight(tensor) && (is_expert || folder == counts.first_folder) ? 1 : 0;
    }
    return families;
  }

  void check_masters() {
    for (const auto& [family, counts] : count_masters()) {
      if (counts.masters >= counts.weights) continue;
      const std::string lack = "the rank files of " + family + " hold the masters of " +
                               std::to_string(counts.masters) + " of " +
                               std::to_string(counts.weights) + " weights";
      if (args_.size("context_parallel_size") > 1) {
        find(family, std::string(kOverwritten) + ": " + lack, overwritten_hint(args_));
      } else {
        report_.not_proven.push_back({lack, "frozen parameters have no masters"});
      }
    }
  }

  void find(const std::string& file, std::string problem, std::string hint) {
    report_.find({.file = checkpoint_.shown_name(file), .key = {}}, std::move(problem),
                 std::move(hint));
  }

  const OpenedTraining& checkpoint_;
  VerifyReport& report_;
  const RunArgs& args_;
  std::vector<WorldRank> ranks_;  // empty: the layout is not known
};

// Not one rank's file that was opened alone: of it the others are not missing.
bool has_rank_folders(const OpenedTraining& checkpoint) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  const bool is_file =
      catalog.files.size() == 1 && catalog.files[0].path.find('/') == std::string::npos;
  return catalog.format == ckpt::Format::Torch && is_megatron(checkpoint) && !is_file;
}

}  // namespace

void check_rank_folders(const OpenedTraining& checkpoint, VerifyReport& report) {
  if (has_rank_folders(checkpoint)) RankFolderCheck(checkpoint, report).run();
}

std::vector<std::string> missing_rank_files(const OpenedTraining& checkpoint) {
  if (!has_rank_folders(checkpoint)) return {};
  VerifyReport unused;
  return RankFolderCheck(checkpoint, unused).missing_files();
}

}  // namespace optim
