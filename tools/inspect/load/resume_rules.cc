// What load_checkpoint of Megatron-LM asks of arguments and of the scheduler, and what a load that
// raises nothing leaves other than it was.
#include <algorithm>

#include <training/continuation.h>

#include "inspect/load/resume_case.h"

namespace tools::inspect {
namespace {

using enum MegatronTree;

constexpr Raised kArgsCompared = {kLoading, {0, 120, 152, 147, 155, 166, 199}};
constexpr Raised kParsed = {"megatron/training/arguments.py", {106, 102, 103, 103, 142, 131, 132}};
constexpr Raised kScheduler = {"megatron/core/optimizer_param_scheduler.py",
                               {231, 327, 332, 328, 333, 333, 333}};

RuleAnswer arguments_are_known(const ResumeCase& of) {
  if (of.facts.is_layer_wise && of.tree == Core0153) {
    return refusal(of, kParsed, "pretrain_gpt.py: error: argument --optimizer: invalid choice");
  }
  if (!of.run.unrecognized.empty()) {
    return refusal(of, kParsed,
                   "pretrain_gpt.py: error: unrecognized arguments: " + of.run.unrecognized);
  }
  if (!of.run.missing.empty()) return not_known(of.run.missing);
  if (const auto name = of.unknown()) return not_known("what --" + *name + " does to a load");
  if (of.size("world_size") % (of.tp() * of.pp() * of.cp()) != 0) {
    return not_known("sizes that do not divide " + std::to_string(of.size("world_size")) +
                     " processes");
  }
  const json step = of.now("ckpt_step");
  if (!step.is_null() && step != of.facts.iteration) {
    return not_known("the iteration that --ckpt-step names: give its folder");
  }
  return std::nullopt;
}

RuleAnswer arguments_contradict(const ResumeCase& of) {
  if (of.flag("override_opt_param_scheduler") && of.flag("use_checkpoint_opt_param_scheduler")) {
    return refusal(
        of, {"megatron/core/optimizer_param_scheduler.py", {90, 173, 175, 174, 176, 176, 176}},
        "AssertionError: both override and use-checkpoint are set.");
  }
  const bool is_zero1 = of.is_on("use_distributed_optimizer");
  if (is_zero1 && of.is_other("optimizer") && of.now("optimizer") == "sgd") {
    return refusal(of, {"megatron/core/optimizer/distrib_optimizer.py", {0, 0, 0, 516, 0, 0, 0}},
                   "AssertionError: Only Adam and HybridDeviceOptimizer currently supported, due "
                   "to checkpointing requirements.");
  }
  const bool is_muon = python_text(of.now("optimizer")).find("muon") != std::string::npos;
  if (is_muon && of.is_on("fp16")) {
    return refusal(of, {"megatron/core/optimizer/__init__.py", {0, 0, 0, 762, 0, 0, 0}},
                   "ValueError: emerging optimizer with fp16 is not supported.");
  }
  return std::nullopt;
}

// What the scheduler compares, in its order.
struct Scheduled {
  std::string_view name;  // in the message
  json old, now;
};

json times(const json& iterations, const json& batch) {
  if (!iterations.is_number() || !batch.is_number()) return {};
  return iterations.get<double>() * batch.get<double>();
}

// In the order in which they are compared.
std::vector<Scheduled> scheduled(const ResumeCase& of) {
  const auto both = [&](std::string_view title, auto value) {
    return Scheduled{title, value([&](const char* name) { return of.old(name); }),
                     value([&](const char* name) { return of.now(name); })};
  };
  const auto plain = [](const char* name) { return [name](const auto& get) { return get(name); }; };
  const auto samples_or = [](const char* iterations) {
    return [iterations](const auto& get) {
      const json samples = get("train_samples");
      return samples.is_number() ? json(samples.template get<double>())
                                 : times(get(iterations), get("global_batch_size"));
    };
  };
  const auto warmup = [&](const auto& get) {
    const json fraction = get("lr_warmup_fraction");
    return fraction.is_number() ? times(fraction, samples_or("lr_decay_iters")(get))
                                : times(get("lr_warmup_iters"), get("global_batch_size"));
  };
  return {both("learning rate", plain("lr")),
          both("minimum learning rate", plain("min_lr")),
          both("warmup iterations", warmup),
          both("total number of iterations", samples_or("lr_decay_iters")),
          both("learning rate decay style", plain("lr_decay_style")),
          both("start weight decay", plain("start_weight_decay")),
          both("end weight decay", plain("end_weight_decay")),
          both("total number of weight decay iterations", samples_or("train_iters")),
          both("weight decay incr style", plain("weight_decay_incr_style"))};
}

RuleAnswer scheduler_is_the_same(const ResumeCase& of) {
  const bool is_told =
      of.flag("override_opt_param_scheduler") || of.flag("use_checkpoint_opt_param_scheduler");
  if (!of.wants_optimizer() || is_told) return std::nullopt;
  for (const auto& [name, old, now] : scheduled(of)) {
    if (old == now) continue;
    return refusal(of, kScheduler,
                   "AssertionError: OptimizerParamScheduler: class input value " +
                       python_text(now) + " and checkpointvalue " + python_text(old) + " for " +
                       std::string(name) + " do not match");
  }
  return std::nullopt;
}

// As core 0.19.0 was tried with what --no-save-optim and --no-save-rng leave out.
RuleAnswer optimizer_is_there(const ResumeCase& of) {
  if (of.facts.has_optimizer || !of.wants_optimizer()) return std::nullopt;
  return refusal(of, {kLoading, {0, 0, 0, 0, 0, 2573, 0}}, "KeyError: 'optimizer'");
}

RuleAnswer random_states_are_there(const ResumeCase& of) {
  const bool is_needed = of.wants_random_numbers() && !of.facts.is_dist;
  if (of.facts.has_random_states || !is_needed) return std::nullopt;
  return refusal(of, {kLoading, {0, 0, 0, 0, 0, 2693, 0}},
                 "SystemExit: Unable to load rng state from checkpoint");
}

RuleAnswer store_loads(const ResumeCase& of) {
  const json name = of.now("optimizer");
  if (!name.is_string() || !of.facts.is_dist || !of.wants_optimizer()) return std::nullopt;
  const std::string_view failure =
      optim::load_failure_of_store(name.get<std::string>(), of.facts.is_layer_wise);
  if (failure.empty()) return std::nullopt;
  return refusal(of, {"megatron/core/optimizer/optimizer.py", {0, 0, 0, 815, 0, 1146, 1146}},
                 std::string(failure));
}

// As core 0.16.1, 0.18.0, 0.19.0 and August 2026 were tried; those between have the same lines.
RuleAnswer float32_run_loads(const ResumeCase& of) {
  const bool is_flat = of.facts.is_zero1 && (of.facts.has_buckets || !of.facts.is_dist);
  if (!of.facts.is_float32 || !is_flat || !of.wants_optimizer()) return std::nullopt;
  if (of.tree < Core0161) return not_known("a DistributedOptimizer of float32 weights before 0.16");
  const std::array lines = {0, 940, 957, 952, 1169, 1225, 1225};
  return refusal(of, {"megatron/core/optimizer/distrib_optimizer.py", lines},
                 "RuntimeError: a view of a leaf Variable that requires grad is being used in an "
                 "in-place operation.");
}

// As the tree of August 2026 was tried: tests/real/jobs.py, "native".
RuleAnswer float32_params_load(const ResumeCase& of) {
  if (!of.facts.has_float32_params || !of.wants_optimizer()) return std::nullopt;
  const std::string params = "float32 parameters among 16-bit ones";
  if (of.tree < August2026) return not_known(params + " before August 2026");
  if (of.facts.has_buckets || (of.facts.is_zero1 && !of.facts.is_dist)) {
    return refusal(of, {"megatron/core/optimizer/distrib_optimizer.py", {}},
                   "RuntimeError: a view of a leaf Variable that requires grad is being used in an "
                   "in-place operation.");
  }
  const bool has_other_stages =
      of.is_other_size("pipeline_model_parallel_size") || of.chunks() != of.old_chunks();
  if (of.facts.is_zero1 && has_other_stages) return not_known(params + " in other stages");
  if (of.facts.is_layer_wise && of.dp() > 1) {
    return not_known(params + " that LayerWise ranks gather");
  }
  return std::nullopt;
}

uint64_t padded_rows(uint64_t rows, uint64_t divisor) {
  return divisor == 0 ? rows : (rows + divisor - 1) / divisor * divisor;
}

bool pads_otherwise(const ResumeCase& of) {
  const json rows = of.old("vocab_size"), divisible = of.old("make_vocab_size_divisible_by");
  if (!rows.is_number_integer() || !divisible.is_number_integer()) return false;
  const auto rows_at = [&](uint64_t tp) {
    return padded_rows(rows.get<uint64_t>(), divisible.get<uint64_t>() * tp);
  };
  return rows_at(of.tp()) != rows_at(of.old_size("tensor_model_parallel_size"));
}

// State that Megatron leaves as it was made, or fills wrongly, without a word.
void find_wrong_state(const ResumeCase& of, ResumeCertificate& found) {
  const auto say = [&](std::string text) { found.reasons.push_back({"wrong", std::move(text)}); };
  if (!of.facts.is_dist && of.chunks() > 1 && of.old_chunks() == 1) {
    say("model chunks that the files do not have are skipped: their weights are those of a fresh "
        "start");
  }
  if (of.has(Effect::DropsParams)) {
    say(option_list(of.names(Effect::DropsParams)) +
        " leaves out parameters that the checkpoint has");
  }
  if (of.has(Effect::AddsParams)) {
    say(option_list(of.names(Effect::AddsParams)) + " adds parameters, which start anew");
  }
  if (of.has(Effect::Dtype))
    say(option_list(of.names(Effect::Dtype)) + " rounds the weights otherwise");
  if (pads_otherwise(of)) {
    say("embedding and output layer are padded to another number of rows, whose values are new");
  }
  if (!of.facts.mend.empty()) say("the writer displaced masters and states");
}

// As the trees of April and August 2026 were tried: scripts/golden/run, "zero1_rates" and "lion".
void find_wrong_groups(const ResumeCase& of, ResumeCertificate& found) {
  if (!of.wants_optimizer()) return;
  const auto say = [&](std::string text) { found.reasons.push_back({"wrong", std::move(text)}); };
  const bool has_own_rates = !of.old("decoupled_lr").is_null();
  if (has_own_rates && of.tree > Core0153 && of.tree < Core0190) {
    say("groups of --decoupled-lr: releases before 0.19 take them for the others, and give both "
        "the "
        "learning rate of the later one");
  }
  const bool is_lion = python_text(of.now("optimizer")).ends_with("lion");
  const bool has_half = of.facts.is_layer_wise && of.facts.distributes_adam;
  if (is_lion && has_half && of.tree >= Core0190) {
    say("a DistributedOptimizer beside Lion loads what Lion keeps: second moments of AdamW start "
        "at 0");
  }
}

void find_state_left_out(const ResumeCase& of, ResumeCertificate& found) {
  const auto say = [&](std::string text) { found.reasons.push_back({"state", std::move(text)}); };
  if (!of.wants_optimizer()) {
    say(std::string(of.facts.is_release   ? "a release"
                    : of.flag("finetune") ? "--finetune"
                                          : "--no-load-optim") +
        ": masters are the rounded weights, moments start at 0, the learning rate starts anew");
  }
}

void find_other_steps(const ResumeCase& of, ResumeCertificate& found) {
  const auto say = [&](std::string text) { found.reasons.push_back({"step", std::move(text)}); };
  if (of.has(Effect::Step)) say(option_list(of.names(Effect::Step)));
  const bool is_muon = of.facts.is_layer_wise;
  const std::string mode = python_text(of.now("muon_tp_mode"));
  const bool has_other_mode = of.is_other("muon_tp_mode") && (of.tp() > 1 || mode == "distributed");
  if (is_muon && has_other_mode) say("--muon-tp-mode " + mode);
  const bool is_split_otherwise = of.is_other_size("tensor_model_parallel_size");
  const bool has_parts = mode != "duplicated" || (of.is_on("swiglu") && !of.has_experts());
  if (is_muon && is_split_otherwise && has_parts) {
    say("Muon takes the parts of matrices in another order at another "
        "--tensor-model-parallel-size");
  }
  if (!of.wants_optimizer() || !of.flag("override_opt_param_scheduler")) return;
  for (const auto& [name, old, now] : scheduled(of)) {
    const bool is_in_groups = name == "learning rate" || name == "minimum learning rate";
    if (old == now || (is_in_groups && of.tree < August2026)) continue;
    say("--override-opt_param-scheduler: " + std::string(name) + " is " + python_text(now) +
        ", was " + python_text(old));
  }
}

void find_other_inputs(const ResumeCase& of, ResumeCertificate& found) {
  if (of.has(Effect::Gradients)) {
    found.reasons.push_back({"gradients", option_list(of.names(Effect::Gradients))});
  }
  const bool is_resized = of.is_other_tp_or_pp() ||
                          of.cp() != of.old_size("context_parallel_size") ||
                          of.ep() != of.old_ep() || of.dp() != of.old_dp();
  if (is_resized) {
    found.reasons.push_back({"gradients", "at other sizes gradients are summed in another order"});
  }
  const auto drops = [&](const char* name) {
    const json rate = of.now(name);
    return !rate.is_number() || rate.get<double>() != 0;
  };
  const bool uses_numbers = drops("attention_dropout") || drops("hidden_dropout");
  const bool are_loaded = of.wants_random_numbers() && of.facts.has_random_states;
  if (!are_loaded && uses_numbers) {
    found.reasons.push_back({"random_numbers", "random numbers start anew"});
  }
}

ResumeVerdict verdict_of(const std::vector<ResumeReason>& reasons) {
  if (reasons.empty()) return ResumeVerdict::Continues;
  const bool is_wrong = std::ranges::any_of(reasons, [](auto& r) { return r.of == "wrong"; });
  return is_wrong ? ResumeVerdict::LoadsWrong : ResumeVerdict::NextStepDiffers;
}

std::string mend_for(const ResumeCase& of, const ResumeCertificate& found) {
  if (!of.facts.mend.empty()) return of.facts.mend;
  const bool does_not_load =
      found.verdict == ResumeVerdict::Refuses || found.verdict == ResumeVerdict::LoadsWrong;
  const bool is_of_sizes = of.has(Effect::Size) && does_not_load;
  if (is_of_sizes) {
    return "reshard CKPT OUT --tp " + std::to_string(of.tp()) + " --pp " + std::to_string(of.pp()) +
           " --ep " + std::to_string(of.ep()) + " --cp " + std::to_string(of.cp()) + " --dp " +
           std::to_string(of.dp());
  }
  return {};
}

// Before a checkpoint is read, and behind its own.
constexpr ResumeRule kArgumentRules[] = {arguments_are_known, arguments_contradict};
constexpr ResumeRule kSchedulerRules[] = {optimizer_is_there,    store_loads,
                                          float32_run_loads,     float32_params_load,
                                          scheduler_is_the_same, random_states_are_there};

}  // namespace

RuleAnswer arguments_are_the_same(const ResumeCase& of) {
  if (of.flag("finetune")) return std::nullopt;
  for (const char* name :
       {"num_layers", "hidden_size", "num_attention_heads", "data_parallel_random_init",
        "tensor_model_parallel_size", "pipeline_model_parallel_size"}) {
    const bool is_size = effect_of(name) == Effect::Size;
    if (is_size && of.facts.is_dist) continue;
    if (is_size ? !of.is_other_size(name) : !of.is_other(name)) continue;
    return refusal(of, kArgsCompared,
                   "AssertionError: " + std::string(name) + " value from checkpoint (" +
                       python_text(of.old(name)) + ") is not equal to the input argument value (" +
                       python_text(of.now(name)) + ").");
  }
  return std::nullopt;
}

RuleAnswer rates_of_groups_are_the_same(const ResumeCase& of) {
  const bool has_other_rates = of.is_other("lr") || of.is_other("min_lr");
  if (of.tree < Core0190 || !has_other_rates || !of.wants_optimizer()) return std::nullopt;
  if (of.facts.is_zero1) {
    return refusal(of, {"megatron/core/optimizer/distrib_optimizer.py", {0, 0, 0, 0, 0, 970, 970}},
                   "KeyError: (");
  }
  return refusal(of, {"megatron/core/optimizer/optimizer.py", {0, 0, 0, 0, 0, 640, 640}},
                 "ValueError: Could not find parameter group with key (");
}

std::string_view name(ResumeVerdict verdict) {
  static constexpr std::string_view kNames[] = {"continues", "next_step_differs", "loads_wrong",
                                                "refuses", "not_known"};
  return kNames[static_cast<size_t>(verdict)];
}

ResumeCertificate certificate_without_tracker() {
  return {.verdict = ResumeVerdict::LoadsWrong,
          .reasons = {{"wrong",
                       "latest_checkpointed_iteration.txt is missing: Megatron says so in its log "
                       "and starts from random weights; --exit-on-missing-checkpoint stops it"}},
          .mend = "echo 100 > CKPT/latest_checkpointed_iteration.txt for iter_0000100"};
}

ResumeCertificate certify(const ResumeFacts& checkpoint, const ResumeRun& run) {
  const ResumeCase of(checkpoint, run);
  ResumeCertificate found;
  using Rules = std::span<const ResumeRule>;
  const Rules own = checkpoint.is_dist ? store_rules() : rank_file_rules();
  for (const Rules rules : {Rules(kArgumentRules), own, Rules(kSchedulerRules)}) {
    for (const ResumeRule rule : rules) {
      if (auto refused = rule(of)) {
        found = *std::move(refused);
        found.mend = mend_for(of, found);
        return found;
      }
    }
  }
  find_wrong_state(of, found);
  find_wrong_groups(of, found);
  find_state_left_out(of, found);
  find_other_steps(of, found);
  find_other_inputs(of, found);
  for (const std::string& name : of.names(Effect::Overruled)) {
    found.notes.push_back(option_list({name}) +
                          " does not count: the checkpoint's groups state it");
  }
  found.loads_optimizer = of.wants_optimizer();
  found.verdict = verdict_of(found.reasons);
  found.mend = mend_for(of, found);
  return found;
}

}  // namespace tools::inspect
