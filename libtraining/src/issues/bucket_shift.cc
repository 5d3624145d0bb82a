// Megatron's issue 5077: bucket_windows.h says what it does to fully_reshardable state.
#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include <ckpt/flat_range.h>
#include <training/filed_state.h>
#include <training/opened_training.h>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/rank_files.h"
#include "issues/bucket_windows.h"
#include "issues/issue.h"
#include "issues/shifted_state.h"
#include "state/not_checked.h"
#include "state/remainders.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr uint64_t kElementsMax = uint64_t{1} << 16;  // of a parameter's end that are looked at

// Looks at the end of every flat buffer of a fully_reshardable checkpoint.
class EndOfBuffers {
 public:
  EndOfBuffers(const FiledState& state, const OpenedTraining& source)
      : state_(state), source_(source), buffers_(state) {}

  std::string run() const {
    for (const WorldRank& rank : ranks_of(state_.grid)) {
      for (uint32_t optimizer = 0; optimizer < state_.chain.size(); ++optimizer) {
        if (!buffers_.flat.writes(optimizer, rank.at)) continue;
        for (const FlatBuffer& buffer : buffers_.flat.of(optimizer, rank.at)) {
          if (!ends_in_zeros(buffer, rank.at)) continue;
          return state_.model[buffer.held[last_of(buffer)].entry].name;
        }
      }
    }
    return {};
  }

 private:
  static size_t last_of(const FlatBuffer& buffer) {
    const auto& places = buffer.layout.places;
    return static_cast<size_t>(
        std::ranges::max_element(places, {},
                                 [](const FlatPlace& place) { return place.range.begin; }) -
        places.begin());
  }

  bool ends_in_zeros(const FlatBuffer& buffer, const RankCoordinates& rank) const {
    const size_t last = last_of(buffer);
    const FlatPlace& place = buffer.layout.places[last];
    const uint64_t shift = place.range.begin - buffer.layout.compact_begin(last);
    if (shift == 0 || !buffers_.placement.is_first_copy(buffer.held[last], rank.pp)) return false;
    const uint32_t index = state_.model[buffer.held[last].entry].param;
    const uint64_t elements = place.range.end - place.range.begin;
    const uint64_t count = std::min({shift, elements, kElementsMax});
    const uint32_t tensor_rank = buffers_.placement.tensor_rank(index, rank);
    return std::ranges::all_of(state_.params[index].states, [&](const StateTensor& state) {
      return is_zero(*state.value, {index, tensor_rank, elements - count});
    });
  }

  struct End {
    uint32_t param, tensor_rank;
    uint64_t first;  // of the rank's tensor, flattened
  };

  bool is_zero(const TensorEntry& tensor, const End& end) const {
    uint64_t skipped = end.first;
    for (const Box& box : buffers_.placement.boxes(end.param, end.tensor_rank)) {
      const uint64_t size = ckpt::element_count(box.sizes);
      const uint64_t begin = std::min(skipped, size);
      skipped -= begin;
      if (begin == size) continue;
      for (const Box& part : ckpt::boxes_of_flat_range(box, begin, size - begin)) {
        std::vector<std::byte> bytes(ckpt::element_count(part.sizes) *
                                     ckpt::bytes_per_element(tensor.dtype));
        source_.read(tensor, part, bytes);
        const auto is_nothing = [](std::byte byte) { return byte == std::byte{0}; };
        if (!std::ranges::all_of(bytes, is_nothing)) return false;
      }
    }
    return true;
  }

  const FiledState& state_;
  const OpenedTraining& source_;
  StateBuffers buffers_;
};

// bucket_windows.h where masters are remainders, which prove no place: what is displaced in a
// buffer ends in as many zeros as it was moved by, master and moments alike. The name of a
// parameter that ends so; empty where none does, and nothing can have been displaced. Reads a few
// elements.
std::string may_be_displaced(const FiledState& state, const OpenedTraining& source) {
  if (state.filed.only() != &kByName || !has_remainders(state)) return {};
  const bool has_one_bucket =
      !is_true(state.args(), "overlap_grad_reduce") && state.grid.sizes.pipeline_parallel == 1;
  return has_one_bucket ? std::string() : EndOfBuffers(state, source).run();
}

using Verdict = RepairFinding::Verdict;

constexpr size_t kShownMax = 64;  // in one message

std::vector<LostElements> lost_of(const ShiftedState& shifted) {
  std::map<uint32_t, uint64_t> counts;
  for (const LostRun& run : shifted.lost) {
    counts[run.param] += run.elements.end - run.elements.begin;
  }
  std::vector<LostElements> lost;
  for (const auto& [param, count] : counts) {
    const TrainedParam& of = shifted.state.params[param];
    lost.push_back({of.info.name, count, ckpt::element_count(of.weight->shape)});
  }
  return lost;
}

std::string elements_back(const ShiftedState& shifted) {
  return std::to_string(shifted.least) +
         (shifted.most == shifted.least ? "" : " to " + std::to_string(shifted.most));
}

RepairFinding describe(const std::optional<FoundShift>& found) {
  RepairFinding finding{.kind = RepairKind::BucketShift, .text = "no state is displaced"};
  if (!found || found->is_sound()) return finding;
  finding.compared_count = found->found_count();
  finding.right_count = found->matching_count;
  const std::string counts = std::to_string(found->matching_count) + " of " +
                             std::to_string(found->found_count()) + " masters";
  if (!found->explains()) {
    finding.verdict = Verdict::NotMendable;
    finding.text =
        "masters do not round to their weights, but not because they are displaced: " + counts +
        " would if they were moved, which is less than 99.9 %";
    return finding;
  }
  const ShiftedState& shifted = found->shifted;
  finding.verdict = Verdict::Mendable;
  finding.lost = lost_of(shifted);
  finding.text = "masters and moments of " + counted(shifted.displaced.size(), "parameter") +
                 " lie " + elements_back(shifted) + " elements too far back: moved, " + counts +
                 " round to their weights";
  if (shifted.lost_count != 0) {
    finding.text += "; " + std::to_string(shifted.lost_count) + " elements of " +
                    counted(finding.lost.size(), "parameter") + " are in no file";
  }
  return finding;
}

std::string list_of(const std::vector<LostElements>& lost) {
  std::string text;
  for (size_t i = 0; i < std::min(lost.size(), kShownMax); ++i) {
    text += (text.empty() ? "" : ", ") + std::to_string(lost[i].lost_count) + " of " +
            std::to_string(lost[i].element_count) + " of " + ckpt::escaped(lost[i].param);
  }
  return text + (lost.size() > kShownMax ? ", ..." : "");
}

void require_mendable(const RepairFinding& finding, const RepairOptions& options) {
  if (finding.verdict == Verdict::NotMendable) {
    throw Error(ErrorCode::Corrupt, {}, std::string(kBucketShift.name) + ": " + finding.text,
                "--repair without a kind lists what can be repaired");
  }
  if (finding.lost.empty() || options.accept_loss) return;
  uint64_t lost = 0;
  for (const LostElements& one : finding.lost) lost += one.lost_count;
  throw Error(ErrorCode::Corrupt, {},
              std::string(kBucketShift.name) + ": masters and moments of " + std::to_string(lost) +
                  " elements are in no file: " + list_of(finding.lost),
              "--accept-loss takes these masters from the weights and sets these moments to 0");
}

// Whatever is written of the state, this is not in it.
void list_losses(const RepairFinding& finding, FiledState& state) {
  for (const LostElements& one : finding.lost) {
    state.not_carried.push_back({std::to_string(one.lost_count) + " elements of " +
                                     state_key(kMasterState, one.param) + " and of its moments",
                                 "in no file: masters are the weights, moments are 0"});
  }
}

RepairFinding mend_shift(RepairedState& repaired, const OpenedTraining& source,
                         const RepairOptions& options) {
  auto found = find_bucket_shift(repaired.state, source);
  RepairFinding finding = describe(found);
  require_mendable(finding, options);
  if (finding.verdict != Verdict::Mendable) return finding;
  repaired.state = std::move(found->shifted.state);
  if (!finding.lost.empty()) repaired.payloads = found->payloads;
  list_losses(finding, repaired.state);
  return finding;
}

std::string text_of_remainders(const std::string& param) {
  return "the state of '" + ckpt::escaped(param) +
         "' ends in zeros, as Megatron-Core 0.15 to 0.19 leaves it where it displaces state, with "
         "gradients in several buckets (its issue 5077); 16-bit remainders of masters do not show "
         "whether it did";
}

void refuse_remainders(const FiledState& state, const OpenedTraining& source) {
  const std::string displaced = may_be_displaced(state, source);
  if (displaced.empty()) return;
  throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
              text_of_remainders(displaced), "--model-only carries the weights, which are right");
}

std::string explain_differing(const FiledState& state) {
  if (state.filed.only() != &kByName) return {};
  try {
    if (first_displaced(state).empty()) return {};
  } catch (const Error&) {
    return {};  // how its buffers are cut is not known
  }
  return "--repair lists what can be repaired, as after Megatron's issue 5077";
}

void note_remainders(const SeenValues& seen, VerifyReport& report) {
  const auto param = unless_damaged([&] { return may_be_displaced(seen.state, seen.checkpoint); });
  if (!param || param->empty()) return;
  report.not_proven.push_back({"that state lies where it belongs", text_of_remainders(*param)});
}

// Of several processes that one says it which has seen the first displaced master.
void report_displaced(const SeenValues& seen, VerifyReport& report) {
  const std::string first = first_displaced(seen.state);
  const auto param = std::ranges::find(seen.state.params, first,
                                       [](const TrainedParam& one) { return one.info.name; });
  if (param == seen.state.params.end() || !seen.is_own(param->master->chunks.at(0))) return;
  const auto found = find_bucket_shift(seen.state, seen.checkpoint);
  if (!found || !found->explains()) return;
  const ShiftedState& shifted = found->shifted;
  report.find(seen.where(*param->master, param->master->chunks.at(0)),
              "masters and moments of " + counted(shifted.displaced.size(), "parameter") +
                  ", this one among them, lie " + elements_back(shifted) +
                  " elements too far back in their buffers: moved, " +
                  std::to_string(found->matching_count) + " of " +
                  std::to_string(found->found_count()) + " masters round to their weights; " +
                  std::to_string(shifted.lost_count) + " are not in the files",
              std::string(kBucketShiftWriters) +
                  "; the weights are right; ckpt-convert --repair bucket-shift moves it back");
}

void report_shift(const SeenValues& seen, VerifyReport& report) {
  note_remainders(seen, report);
  if (!seen.do_masters_differ || seen.state.filed.only() != &kByName) return;
  unless_damaged([&] { report_displaced(seen, report); });
}

}  // namespace

const Issue kBucketShift{
    .kind = RepairKind::BucketShift,
    .name = "bucket-shift",
    .find = [](const FiledState& state,
               const OpenedTraining& source) { return describe(find_bucket_shift(state, source)); },
    .mend = mend_shift,
    .refuse_unproven = refuse_remainders,
    .explain = explain_differing,
    .report_values = report_shift};

}  // namespace optim
