// Iterations that are no longer needed.
#include <training/prune.h>

#include <algorithm>
#include <set>
#include <utility>

#include <ckpt/folder.h>
#include <ckpt/root.h>
#include <ckpt/staging.h>
#include <training/convert.h>
#include <training/latest.h>
#include <training/megatron_folders.h>

#include "state/words.h"

namespace optim {
namespace {

using What = PrunedIteration::What;

ConvertReport leave_out_optimizer(const std::filesystem::path& root, const std::string& name,
                                  const PruneOptions& options, bool is_dry) {
  ConvertOptions convert_options;
  convert_options.model_only = true;
  convert_options.base.dry_run = is_dry;
  convert_options.base.verify = !is_dry;
  convert_options.base.limits = options.limits;
  convert_options.base.execute = options.execute;
  return convert(root / name, root / ckpt::name_while_prepared(name), convert_options);
}

class Pruning {
 public:
  Pruning(std::filesystem::path root, const PruneOptions& options)
      : root_(std::move(root)), options_(options) {}

  PruneReport run() {
    if (!ckpt::scheme_of(root_.native()).empty()) {
      throw Error(ErrorCode::Unsupported, {.file = root_.string(), .key = {}},
                  "is not on this machine: only folders on a disk are taken out in one step",
                  "ckpt-inspect latest ROOT says which iterations are complete; remove others with "
                  "the store's own tools");
    }
    if (options_.acts) clean();
    decide();
    for (PrunedIteration& each : report_.iterations) {
      if (options_.acts) act(each);
      report_.freed_bytes += each.freed_bytes;
    }
    return std::move(report_);
  }

 private:
  void clean() {
    report_.cleaned = ckpt::clean_removed(root_);
    for (const auto& folder : ckpt::list_iterations(root_, kMegatronFolders)) {
      ckpt::Staging::clean(root_ / ckpt::name_while_prepared(folder.path.filename().string()));
    }
  }

  void decide() {
    const auto last =
        find_complete(root_, std::max<uint64_t>(1, options_.keep_last), options_.limits);
    if (last.empty()) {
      throw Error(ErrorCode::NotFound, {.file = root_.string(), .key = {}},
                  "no iteration is complete, so none is removed",
                  "ckpt-inspect latest ROOT says what is wrong with each");
    }
    newest_ = last.front().iteration;
    for (const ckpt::IterationFolder& folder : last) last_.insert(folder.iteration);
    tracked_ = ckpt::latest_iteration(root_, kMegatronFolders).value_or(newest_);
    for (const auto& folder : ckpt::list_iterations(root_, kMegatronFolders)) {
      report_.iterations.push_back(
          {What::Removed, folder.path.filename().string(), folder.iteration, {}, 0, 0});
    }
    if (report_.iterations.empty()) {
      throw Error(ErrorCode::Unsupported, {.file = root_.string(), .key = {}},
                  "has no iterations as Megatron names them, iter_0000100");
    }
    for (PrunedIteration& each : report_.iterations) {
      each.bytes = ckpt::bytes_in_folder(root_, each.name);
      keep(each);
      if (each.what == What::Removed) each.freed_bytes = each.bytes;
    }
  }

  void keep(PrunedIteration& each) const {
    const int64_t number = each.iteration;
    const auto stays = [&](std::string why) {
      each.what = What::Kept;
      each.reason = std::move(why);
    };
    if (number == newest_) return stays("the newest that is complete");
    if (number > newest_) return stays("newer than what is complete");
    if (number == tracked_) return stays("the tracker names it");
    if (last_.contains(number)) {
      stays("one of the last " + std::to_string(options_.keep_last));
    } else if (options_.keep_every && number % static_cast<int64_t>(*options_.keep_every) == 0) {
      stays("a multiple of " + std::to_string(*options_.keep_every));
    }
    if (each.what == What::Kept) trim(each);
  }

  // Says whether it can be, before anything is done.
  void trim(PrunedIteration& each) const {
    if (!options_.drop_optimizer_before || each.iteration >= *options_.drop_optimizer_before)
      return;
    const ConvertReport planned = leave_out_optimizer(root_, each.name, options_, true);
    if (std::ranges::count(planned.not_carried, "the optimizer state", &ckpt::NotCarried::what) ==
        0)
      return;
    each.what = What::Trimmed;
    each.reason += ", without its optimizer";
    const uint64_t left = planned.plan.total_bytes;
    each.freed_bytes = left < each.bytes ? each.bytes - left : 0;
  }

  void act(const PrunedIteration& each) const {
    if (each.what == What::Removed) ckpt::remove_folder(root_, each.name);
    if (each.what != What::Trimmed) return;
    leave_out_optimizer(root_, each.name, options_, false);
    ckpt::replace_by_prepared(root_, each.name);
  }

  std::filesystem::path root_;
  const PruneOptions& options_;
  PruneReport report_;
  int64_t newest_ = 0, tracked_ = 0;
  std::set<int64_t> last_;
};

}  // namespace

PruneReport prune(const std::filesystem::path& root, const PruneOptions& options) {
  return Pruning(root, options).run();
}

}  // namespace optim
