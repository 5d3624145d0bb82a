// A report: what a summary, verify and the statistics of all tensors say, from one pass.
#include <training/report_page.h>

#include <algorithm>
#include <cmath>
#include <map>

#include <ckpt/error.h>
#include <ckpt/files_beside.h>
#include <ckpt/statistics.h>
#include <training/megatron_folders.h>

#include "args/run_args.h"
#include "grid/rank_files.h"
#include "report/page/rows.h"
#include "state/not_checked.h"
#include "state/read_range.h"

namespace optim {
namespace {

using Figures = std::vector<std::optional<TensorFigures>>;

// Of tensors that verify() did not pass by as runs of bytes. One that cannot be read has none,
// which is verify's to tell.
void read_others(const OpenedTraining& checkpoint, const ReportRows& rows,
                 const ckpt::ExecuteOptions& options, Figures& figures) {
  for (size_t i = 0; i < figures.size(); ++i) {
    if (figures[i] || repeats_much(*rows.entries[i])) continue;
    unless_damaged([&] {
      const std::span<const ckpt::TensorEntry> one(rows.entries[i].get(), 1);
      ckpt::ExecuteOptions quiet = options;
      quiet.on_progress = {};
      figures[i] = figures_of(make_statistics(one, checkpoint, quiet, {0}).front());
    });
  }
}

Figures read_all(const OpenedTraining& checkpoint, const ReportRows& rows,
                 const ReportOptions& options, ReportPage& page) {
  FiguresWatch watch(rows.entries);
  VerifyOptions verify_options;
  verify_options.execution = options.execution;
  verify_options.on_storage = [&watch](const ckpt::StoragePiece& piece) { watch.see(piece); };
  page.verify = verify(checkpoint, verify_options);
  Figures figures = watch.take();
  read_others(checkpoint, rows, options.execution, figures);
  return figures;
}

// Boxes of `bytes_max` together.
TensorFigures read_sample(const OpenedTraining& checkpoint, const ckpt::TensorEntry& tensor,
                          uint64_t bytes_max, ckpt::ExecuteOptions execution) {
  ckpt::StatisticsSum sum(tensor.dtype);
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
  const uint64_t elements = std::max<uint64_t>(bytes_max / element_bytes, 1);
  for (const ckpt::Box& box : spread_boxes(tensor.shape, elements)) {
    constexpr uint64_t kBytesMax = uint64_t{64} << 20;
    const uint64_t count_bytes = ckpt::element_count(box.sizes) * element_bytes;
    if (count_bytes > kBytesMax) {  // a whole tensor that is not larger than its share
      const std::span<const ckpt::TensorEntry> one(&tensor, 1);
      execution.on_progress = {};
      return figures_of(make_statistics(one, checkpoint, execution, {0}).front());
    }
    std::vector<std::byte> bytes(count_bytes);
    checkpoint.read(tensor, box, bytes);
    sum.add(bytes);
  }
  return figures_of(sum.result());
}

Figures read_samples(const OpenedTraining& checkpoint, const ReportRows& rows,
                     const ReportOptions& options, ReportPage& page) {
  VerifyOptions verify_options;
  verify_options.quick = true;
  verify_options.execution = options.execution;
  page.verify = verify(checkpoint, verify_options);
  page.is_sample = true;
  const std::vector<uint64_t> shares = shared_out(rows.entries, *options.sample_bytes);
  Figures figures(rows.entries.size());
  for (size_t i = 0; i < figures.size(); ++i) {
    if (options.execution.stop.stop_requested()) {
      throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "cancelled");
    }
    if (shares[i] == 0 && ckpt::count_bytes(*rows.entries[i]) != 0) continue;
    figures[i] = unless_damaged(
        [&] { return read_sample(checkpoint, *rows.entries[i], shares[i], options.execution); });
  }
  return figures;
}

void add_ranks(const OpenedTraining& checkpoint, ReportPage& page) {
  RunGrid grid;
  if (page.summary.groups.state) {
    grid = page.summary.groups.state->grid;
  } else {
    try {
      TrainingState stated;
      if (!page.summary.run.args) return;
      read_args(*page.summary.run.args, checkpoint.shown_path(), stated);
      grid = stated.grid;
    } catch (const ckpt::Error&) {
      return;  // sizes that make no grid
    }
  }
  constexpr uint64_t kRanksMax = 1 << 16;
  if (grid.sizes.world() > kRanksMax) return;
  for (const WorldRank& rank : ranks_of(grid)) {
    const RankCoordinates& at = rank.at;
    page.ranks.push_back({rank.rank, at.tp, at.pp, at.cp, at.dp, at.ep});
  }
  std::string axis;
  for (const char letter : grid.rank_order + "-") {
    if (letter != '-') {
      axis += letter;
    } else {
      page.rank_axes.push_back(std::exchange(axis, {}));
    }
  }
}

std::string proof_text(const OpenedTraining& checkpoint) {
  constexpr size_t kBytesMax = size_t{1} << 18;
  const std::string name(kMegatronFolders.proof_file);
  const auto found = unless_damaged([&] {
    const auto kind = checkpoint.source().kind_of_entry(checkpoint.folder() / name);
    if (kind == ckpt::EntryKind::Absent) return std::string();
    std::string text = ckpt::text_beside(checkpoint, name);
    return text.size() <= kBytesMax ? text : std::string();
  });
  return found.value_or(std::string());  // what is wrong with it verify tells
}

// --- marks ---

// Times the median of a state over the parameters, or a part of it.
constexpr double kFar = 1000;
constexpr size_t kEnoughForMedian = 4;

std::optional<double> root_mean_square(const ReportedTensor& tensor) {
  if (!tensor.figures || !tensor.figures->moments) return std::nullopt;
  const TensorFigures& figures = *tensor.figures;
  const uint64_t finite = figures.element_count - figures.nan_count - figures.inf_count;
  if (finite == 0) return std::nullopt;
  return figures.moments->norm / std::sqrt(static_cast<double>(finite));
}

bool is_state(const ReportedTensor& tensor) {
  return tensor.tensor.role == KeyKind::OptimizerState &&
         ckpt::element_count(tensor.tensor.shape) > 1;
}

std::map<std::string, double> medians_of(std::span<const ReportedTensor> tensors) {
  std::map<std::string, std::vector<double>> all;
  for (const ReportedTensor& tensor : tensors) {
    const auto size = root_mean_square(tensor);
    if (is_state(tensor) && size && *size > 0) all[tensor.tensor.state].push_back(*size);
  }
  std::map<std::string, double> medians;
  for (auto& [state, sizes] : all) {
    if (sizes.size() < kEnoughForMedian) continue;
    const auto middle = sizes.begin() + static_cast<ptrdiff_t>(sizes.size() / 2);
    std::ranges::nth_element(sizes, middle);
    medians[state] = *middle;
  }
  return medians;
}

}  // namespace

std::string_view name(Mark mark) {
  static constexpr std::string_view kNames[] = {"not_finite", "all_zero", "large", "small"};
  return kNames[static_cast<size_t>(mark)];
}

void add_marks(std::span<ReportedTensor> tensors) {
  const std::map<std::string, double> medians = medians_of(tensors);
  for (ReportedTensor& tensor : tensors) {
    if (!tensor.figures) continue;
    const TensorFigures& figures = *tensor.figures;
    if (figures.nan_count != 0 || figures.inf_count != 0) tensor.marks.push_back(Mark::NotFinite);
    if (!is_state(tensor)) continue;
    const bool is_whole = figures.element_count == ckpt::element_count(tensor.tensor.shape);
    if (figures.zero_count == figures.element_count && !is_whole) continue;  // of a sample
    if (figures.zero_count == figures.element_count) {
      tensor.marks.push_back(Mark::AllZero);
      continue;
    }
    const auto size = root_mean_square(tensor);
    const auto median = medians.find(tensor.tensor.state);
    if (!size || median == medians.end()) continue;
    if (*size > kFar * median->second) tensor.marks.push_back(Mark::Large);
    if (*size * kFar < median->second) tensor.marks.push_back(Mark::Small);
  }
}

ReportPage make_report(const OpenedTraining& checkpoint, const ReportOptions& options) {
  ReportPage page;
  page.summary = summarize(checkpoint);
  ReportRows rows = list_rows(checkpoint, page.summary.groups.state.get());
  for (const TensorRef& entry : rows.entries) page.tensor_bytes += ckpt::count_bytes(*entry);
  const bool is_sample = options.sample_bytes && *options.sample_bytes < page.tensor_bytes;
  Figures figures = is_sample ? read_samples(checkpoint, rows, options, page)
                              : read_all(checkpoint, rows, options, page);
  for (size_t i = 0; i < figures.size(); ++i) {
    if (!figures[i]) continue;
    page.looked_at_bytes +=
        figures[i]->element_count * ckpt::bytes_per_element(rows.entries[i]->dtype);
    rows.tensors[i].figures = std::move(figures[i]);
  }
  // What they are made of is read beside a sample's bytes.
  if (!is_sample) page.updates = list_updates(checkpoint, page.summary, rows);
  page.tensors = std::move(rows.tensors);
  add_marks(page.tensors);
  add_ranks(checkpoint, page);
  page.proof = proof_text(checkpoint);
  return page;
}

}  // namespace optim
