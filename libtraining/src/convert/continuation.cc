// Which changes a next step notices.
#include <training/continuation.h>

#include <algorithm>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/placement.h"
#include "grid/target_groups.h"
#include "grid/whole_states.h"
#include "state/words.h"

namespace optim {
namespace {

class Judge {
 public:
  Judge(const FiledState& source, const ContinuedAs& result)
      : source_(source), result_(result), args_(source.args()) {}

  Continuation run() {
    judge_random_numbers();
    if (!find_uncounted(source_).empty()) {
      found_.reasons.push_back("there is no step count: " + std::string(kUncounted));
    }
    judge_vocabulary();
    judge_groups_by_place();
    if (result_.loses_step_count) {
      found_.reasons.push_back(
          "Megatron under FSDP2 loads no step count of Adam, and counts from 1");
    }
    if (has_muon() && changes_tensor_ranks()) judge_muon();
    if (!found_.reasons.empty()) {
      found_.next_step = NextStep::Different;
    } else if (result_.grid != source_.grid || result_.has_other_buckets ||
               source_.filed.is_fully_sharded || norm_is_summed_anew()) {
      found_.next_step = NextStep::OrderOfSums;
    }
    return std::move(found_);
  }

 private:
  void judge_random_numbers() {
    if (!result_.is_seeded_anew) return;
    for (const std::string_view name :
         {"hidden_dropout", "attention_dropout", "moe_input_jitter_eps"}) {
      if (number_in(args_, name).value_or(0) <= 0) continue;
      found_.reasons.push_back("random numbers are not those of the source, which " +
                               std::string(name) + " uses");
      return;
    }
  }

  void judge_vocabulary() {
    const uint64_t rows = result_.vocabulary_rows;
    const bool is_other = std::ranges::any_of(source_.params, [&](const TrainedParam& param) {
      return is_vocabulary(source_, param.info.name) && param.weight->shape[0] != rows;
    });
    if (rows == 0 || !is_other) return;
    found_.reasons.push_back("the loss has a logit for each row of padding, and there will be " +
                             std::to_string(rows) + " rows");
  }

  // Of NeMo: DistributedOptimizer.load_state_dict() of Megatron-Core 0.13. Stage 0 has an embedding
  // first, which decays.
  bool has_stage_of_other_order(const RunGrid& grid) const {
    const Placement placement(source_, grid, result_.vocabulary_rows);
    for (uint32_t stage = 1; stage < grid.sizes.pipeline_parallel; ++stage) {
      const std::vector<HeldEntry> held = placement.held(stage, 0);
      const auto first = std::ranges::find_if(held, [&](const HeldEntry& one) {
        return source_.model[one.entry].what == ModelEntry::What::Param;
      });
      if (first == held.end()) continue;
      if (source_.params[source_.model[first->entry].param].weight->shape.size() == 1) return true;
    }
    return false;
  }

  void judge_groups_by_place() {
    const uint32_t before = source_.grid.sizes.pipeline_parallel,
                   after = result_.grid.sizes.pipeline_parallel;
    if (!result_.filed.has(kRanges) || before == after) return;
    if (!has_stage_of_other_order(source_.grid) && !has_stage_of_other_order(result_.grid)) return;
    found_.reasons.push_back(
        "NeMo loads groups by their place, so that stages which begin with a norm decay norms and "
        "biases instead of weights");
  }

  bool changes_tensor_ranks() const {
    return result_.grid.sizes.tensor_parallel != source_.grid.sizes.tensor_parallel;
  }

  bool has_muon() const {
    const auto groups = groups_in_brief(source_);
    return std::ranges::any_of(groups, [](const ParamGroup& group) {
      return group.updated_by.find("muon") != group.updated_by.npos;
    });
  }

  bool has_segments() const {
    return std::ranges::any_of(source_.params, [&](const TrainedParam& param) {
      return rules_of(source_).find_segmented(param.info.name) != nullptr;
    });
  }

  void judge_muon() {
    const auto mode = args_.find("muon_tp_mode");
    if (mode && mode->is(Kind::Str) && mode->text() == "blockwise") {
      found_.reasons.push_back(
          "muon_tp_mode is blockwise: each tensor-parallel rank orthogonalises what it has");
    } else if (is_true(args_, "attention_output_gate")) {
      found_.reasons.push_back(
          "Muon takes rows of the attention's gate for query groups, as each tensor-parallel rank "
          "has them");
    } else if (is_true(args_, "swiglu")) {
      found_.reasons.push_back(
          "Muon takes the rows of gated matrices in the order of the tensor-parallel ranks");
    } else if (is_true(args_, "multi_latent_attention")) {
      found_.reasons.push_back(
          "Muon takes the down-projections of all tensor-parallel ranks for one matrix");
    } else if (has_segments()) {
      found_.reasons.push_back(
          "Muon takes the rows of several projections in the order of the tensor-parallel ranks");
    }
  }

  // Over whole parameters, or over ranges of elements.
  bool norm_is_summed_anew() const {
    const FiledAs &a = source_.filed, &b = result_.filed;
    const bool was_by_elements = a.has_by_elements() && !a.has(kRanges);  // of which none was tried
    const bool is_other_chain = a.is_zero1() || a.is_layer_wise != b.is_layer_wise;
    return was_by_elements != b.has_by_elements() || (!b.is_zero1() && is_other_chain);
  }

  const FiledState& source_;
  const ContinuedAs& result_;
  Value args_;
  Continuation found_;
};

}  // namespace

Continuation continuation_of(const FiledState& source, const ContinuedAs& result) {
  return Judge(source, result).run();
}

}  // namespace optim
