#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/diff.h>
#include <ckpt/execute.h>
#include <ckpt/statistics.h>
#include <training/contents.h>
#include <training/diff_summary.h>
#include <training/names_in_common.h>
#include <training/opened_training.h>
#include <training/summary.h>
#include <training/verify.h>

// A checkpoint on one page: what `ckpt-inspect report` shows, as data.
namespace optim {

// How many elements have which magnitude, as a small picture: heights of bars, each of `step`
// powers of two, the highest of them kHeightMax. Bars of one side go from the largest magnitudes,
// which end with 2^(top + 1), to smaller ones; all that is smaller still, and zeros, are `middle`.
struct HistogramBars {
  static constexpr int kHeightMax = 35;
  static constexpr size_t kBarsMax = 12;
  int top = 0, step = 1;
  std::vector<uint8_t> negative, positive;  // empty, or both sides' bars are as many
  uint8_t middle = 0;
};
HistogramBars bars_of(const ckpt::Statistics& statistics);

struct TensorFigures {
  uint64_t element_count = 0;  // that were looked at
  uint64_t zero_count = 0, nan_count = 0, inf_count = 0;
  std::optional<ckpt::Statistics::Moments> moments;
  HistogramBars bars;
};

// What is conspicuous about a tensor; docs/report.md has the rules.
enum class Mark : uint8_t { NotFinite, AllZero, Large, Small };
std::string_view name(Mark mark);  // "not_finite", "all_zero", ...

struct ReportedTensor {
  LogicalTensor tensor;  // its name is never empty: where the files name no parameter, the key
  bool has_param_name = true;
  std::optional<TensorFigures> figures;  // none where it could not be read
  std::vector<Mark> marks;
  std::optional<uint32_t> optimizer, group;  // where parameters are named
};

// The L2 norm of the change that the stored state makes of a parameter.
struct UpdateNorm {
  size_t tensor = 0;           // of its weight, in ReportPage::tensors
  std::optional<double> norm;  // none where `reason` says why
  bool is_estimate = false;    // from a part of the elements
  std::string rule, reason;
};

struct RankPlace {
  uint32_t rank = 0;
  uint32_t tp = 0, pp = 0, cp = 0, dp = 0, ep = 0;
};

struct ReportOptions {
  // Read at most this much of the tensors, evenly spread, and check the structure alone.
  std::optional<uint64_t> sample_bytes;
  ckpt::ExecuteOptions execution;
};

struct ReportPage {
  Summary summary;
  VerifyReport verify;
  bool is_sample = false;
  uint64_t tensor_bytes = 0;            // of `tensors`
  uint64_t looked_at_bytes = 0;         // of these
  std::vector<ReportedTensor> tensors;  // a parameter's weight, master and states follow each other
  std::vector<UpdateNorm> updates;      // of parameters with an optimizer's state
  std::vector<RankPlace> ranks;         // empty where the checkpoint does not state its grid
  std::vector<std::string> rank_axes;   // that vary fastest first: "tp", "cp", ...
  std::string proof;                    // the text of shardwise-proof.json; empty without one
};

// Reads each payload byte once, for the checks of verify() and the statistics together; what
// updates are made of is read a second time, at most kUpdateElements of a parameter. With
// `sample_bytes` no more of the tensors than that. Throws what verify() throws.
inline constexpr uint64_t kUpdateElements = uint64_t{1} << 16;
ReportPage make_report(const OpenedTraining& checkpoint, const ReportOptions& options);

// What has changed from one checkpoint to another one, of its tensors and of the rest.
struct Comparison {
  NamedPair named;  // what `differences` points into
  ckpt::Differences differences;
  DiffSummary modules;
  // By index into differences.tensors: that in ReportPage::tensors, where the first has it there.
  std::vector<std::optional<size_t>> rows;
};

// Reads both. `options`: the tolerance, and how to execute.
Comparison compare_with(const OpenedTraining& a, const ReportPage& page, const OpenedTraining& b,
                        const ckpt::DiffOptions& options);

}  // namespace optim
