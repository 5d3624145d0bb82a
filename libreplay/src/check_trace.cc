#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/error.h>
#include <optim/checkpoint_bridge.h>
#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <replay/trace.h>

#include "recording.h"
#include "step/loops/single_thread.h"
#include "trace_rule.h"

namespace optim {
namespace {

using nlohmann::json;

// The JSON part of a trace, understood.
struct TraceHeader {
  std::string name;
  RuleConfig rule;
  int64_t first_step = 0;  // updates before the first one
  struct Rates {
    double lr = 0, weight_decay = 0;
  };
  Rates usual;
  std::vector<Rates> rates;  // of each step; empty: the usual ones
  TraceBound bound;          // for this algorithm and precision
  std::vector<ParamInfo> params;
};

JsonFields read_fields(const std::filesystem::path& path) {
  const std::string file = path.string();
  json object = read_json_file(path);
  const bool is_trace = object.is_object() && object.contains("name") &&
                        object.contains("config") && object.contains("params");
  if (!is_trace) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = file},
                      "'" + path.filename().string() + "' is not a trace",
                      "give the JSON file of one trace; its tensors lie beside it, in a "
                      ".safetensors file of the same name");
  }
  return {file, std::move(object)};
}

constexpr int64_t kSizeMax = int64_t{1} << 31;  // of a dimension, in elements

void read_config(const JsonFields& config, EmergingOptimizers era, TraceHeader& header) {
  header.rule = rule_of_trace(config, era);
  header.usual.lr = config.number("lr", SettingRange::AtLeastZero);
  header.usual.weight_decay = config.number("weight_decay", SettingRange::AtLeastZero);
  config.refuse_others();
  const RuleDescription& row = rule_named(header.rule.name());
  if (row.bound != nullptr) header.bound = row.bound(header.rule);
}

constexpr size_t kDimsMax = 8;

bool is_shape(const json& value) {
  return value.is_array() && value.size() <= kDimsMax &&
         std::ranges::all_of(value, [](const json& size) {
           return size.is_number_unsigned() && size.get<uint64_t>() > 0 &&
                  size.get<uint64_t>() <= uint64_t{kSizeMax};
         });
}

// Which parameters are fused qkv weights: names of some of `params`.
void mark_qkv(const JsonFields& fields, std::vector<ParamInfo>& params) {
  for (const std::string& name : fields.texts("qkv_params")) {
    const auto found = std::ranges::find(params, name, &ParamInfo::name);
    if (found == params.end()) fields.refuse("qkv_params", "names of parameters", name);
    found->attributes.is_qkv = true;
  }
}

std::vector<ParamInfo> read_params(const JsonFields& fields) {
  std::vector<ParamInfo> params;
  const JsonFields shapes = fields.object("params");
  for (const auto& [name, shape] : shapes.raw().items()) {
    if (!is_shape(shape)) {
      fields.refuse("params", "sizes of at least 1 for '" + ckpt::escaped(name) + "'", shape);
    }
    ParamInfo info;
    info.name = name;
    info.shape = shape.get<std::vector<int64_t>>();
    params.push_back(std::move(info));
  }
  if (params.empty()) fields.refuse("params", "at least one parameter", fields.any("params"));
  mark_qkv(fields, params);
  return params;
}

// What a trace that was recorded in the middle of a run says of its steps.
void read_steps(const JsonFields& fields, TraceHeader& header) {
  constexpr int64_t kStepMax = int64_t{1} << 40;
  if (fields.has("first_step")) header.first_step = fields.whole("first_step", 0, kStepMax);
  if (!fields.has("rates")) return;
  const json& rates = fields.any("rates");
  const auto is_rate = [](const json& rate) { return rate.is_number() && rate.get<double>() >= 0; };
  const bool are_pairs =
      rates.is_array() && std::ranges::all_of(rates, [&](const json& pair) {
        return pair.is_array() && pair.size() == 2 && is_rate(pair[0]) && is_rate(pair[1]);
      });
  if (!are_pairs) fields.refuse("rates", "a list of [lr, weight_decay]", rates);
  for (const json& pair : rates) {
    header.rates.push_back({pair[0].get<double>(), pair[1].get<double>()});
  }
}

// Some rules update matrices only, and split qkv weights by whole query groups.
void check_shapes(const JsonFields& fields, const RuleConfig& rule,
                  const std::vector<ParamInfo>& params) {
  const QkvSplit* const split = qkv_split_of(rule);
  for (const ParamInfo& param : params) {
    const std::string name = "'" + ckpt::escaped(param.name) + "'";
    if (rule_named(rule.name()).needs_matrix && param.shape.size() != 2) {
      fields.refuse(
          "params",
          "two sizes for " + name + ": '" + std::string(rule.name()) + "' updates matrices only",
          param.shape);
    }
    if (split == nullptr || !param.attributes.is_qkv) continue;
    const int64_t group = split->query_rows + split->key_rows + split->value_rows;
    if (param.shape[0] % group != 0) {
      fields.refuse("params",
                    "for " + name + " a multiple of the " + std::to_string(group) +
                        " rows of qkv_split_shapes",
                    param.shape);
    }
  }
}

// Counts of updates that a class keeps as numbers: "step{k}.step.PARAM".
void check_scalars(const JsonFields& fields, const TraceHeader& header) {
  if (!fields.has("scalars")) return;
  const JsonFields scalars = fields.object("scalars");
  if (scalars.raw().empty()) return;
  if (step_count_of(header.rule) != StepCount::Number) {
    fields.refuse_unsupported("scalars", "recorded scalars of this class are not compared",
                              kReplayedTraces);
  }
  for (const auto& [key, value] : scalars.raw().items()) {
    const auto step = parse_step_key("step", key);
    constexpr std::string_view kStep = "step.";
    const bool is_count = step && step->rest.starts_with(kStep) &&
                          std::ranges::find(header.params, step->rest.substr(kStep.size()),
                                            &ParamInfo::name) != header.params.end();
    if (!is_count) {
      fields.refuse_unsupported("scalars", "'" + ckpt::escaped(key) + "' is not known",
                                kReplayedTraces);
    }
    const int64_t updates = step->step + 1;
    if (value != updates) scalars.refuse(key, std::to_string(updates), value);
  }
}

// `era`: of emerging_optimizers, which a trace does not say.
TraceHeader read_trace_header(const std::filesystem::path& json_file, EmergingOptimizers era) {
  const JsonFields fields = read_fields(json_file);
  TraceHeader header;
  header.name = fields.text("name");
  read_config(fields.object("config"), era, header);
  header.params = read_params(fields);
  read_steps(fields, header);
  check_shapes(fields, header.rule, header.params);
  check_scalars(fields, header);
  fields.refuse_others();
  return header;
}

// Both parts. Tensors are read when they are asked for; all are fp32.
class Trace {
 public:
  // Throws Corrupt, with the key, unless the file has every tensor of every step, of the shape and
  // type that it must have, and no other.
  Trace(std::filesystem::path json_file, EmergingOptimizers era)
      : header_(read_trace_header(json_file, era)),
        recording_(json_file.replace_extension(".safetensors")),
        step_count_(recording_.count_steps()) {
    check_tensors();
  }

  const TraceHeader& header() const { return header_; }
  int64_t step_count() const { return step_count_; }

  TraceHeader::Rates rates(int64_t step) const {
    return header_.rates.empty() ? header_.usual : header_.rates[static_cast<size_t>(step)];
  }

  // States before the first step; empty: the rule makes them.
  ParamState start(const ParamInfo& param) const {
    ParamState states;
    if (!has_start(param)) return states;
    for (const StateSpec& state : states_of(header_.rule, param.shape)) {
      states[std::string(state.name)] = read(start_key(state, param), state.name, param);
    }
    return states;
  }
  at::Tensor initial(const ParamInfo& param) const {
    return read("init." + param.name, kParam, param);
  }
  at::Tensor grad(int64_t step, const ParamInfo& param) const {
    return read(grad_key(step, param.name), kParam, param);
  }
  at::Tensor after(int64_t step, std::string_view what, const ParamInfo& param) const {
    return read(step_key(step, what, param.name), what, param);
  }

 private:
  static std::string start_key(const StateSpec& state, const ParamInfo& param) {
    return "start." + std::string(state.name) + "." + param.name;
  }

  // Of the parameter's shape, or of that of the state `what`.
  TensorForm form(std::string_view what, const ParamInfo& param) const {
    for (const StateSpec& state : states_of(header_.rule, param.shape)) {
      if (state.name == what) {
        return {{state.shape.begin(), state.shape.end()}, {ckpt::DType::Float32}};
      }
    }
    return form_of(param, {ckpt::DType::Float32});
  }

  at::Tensor read(const std::string& key, std::string_view what, const ParamInfo& param) const {
    return load_tensor(recording_.checkpoint(), recording_.find(key, form(what, param)));
  }

  void check_tensors() const {
    if (step_count_ == 0) {
      recording_.refuse(grad_key(0, header_.params.front().name),
                        "is missing: a trace has at least one step");
    }
    if (!header_.rates.empty() && std::ssize(header_.rates) != step_count_) {
      recording_.refuse("", "has " + std::to_string(step_count_) + " steps, but rates of " +
                                std::to_string(header_.rates.size()));
    }
    make_rule(header_.rule);  // throws what settings cannot be made
    std::set<std::string> known;
    for (const ParamInfo& param : header_.params) check_tensors_of(param, known);
    for (const ckpt::TensorEntry& tensor : recording_.catalog().tensors) {
      if (!known.contains(tensor.key)) {
        recording_.refuse(tensor.key, "is neither a gradient nor a state of the trace's optimizer");
      }
    }
  }

  void check_tensors_of(const ParamInfo& param, std::set<std::string>& known) const {
    const auto require = [&](const std::string& key, std::string_view what) {
      recording_.find(key, form(what, param));
      known.insert(key);
    };
    const std::vector<StateSpec> states = states_of(header_.rule, param.shape);
    const bool starts = has_start(param);
    require("init." + param.name, kParam);
    for (const StateSpec& state : states) {
      if (starts) require(start_key(state, param), state.name);
    }
    for (int64_t step = 0; step < step_count_; ++step) {
      require(grad_key(step, param.name), kParam);
      require(step_key(step, kParam, param.name), kParam);
      for (const StateSpec& state : states) {
        require(step_key(step, state.name, param.name), state.name);
      }
      if (is_step_recorded(step, param)) known.insert(step_key(step, "step", param.name));
    }
  }

  // torch counts its steps in a tensor; in a trace it may be left out.
  bool is_step_recorded(int64_t step, const ParamInfo& param) const {
    const std::string key = step_key(step, "step", param.name);
    const bool counts = step_count_of(header_.rule) == StepCount::Tensor;
    if (!counts || !recording_.catalog().find_tensor(key)) return false;
    const ckpt::TensorEntry& entry = recording_.find(key, {{}, {ckpt::DType::Float32}});
    const double recorded = load_tensor(recording_.checkpoint(), entry).item<double>();
    const int64_t updates = header_.first_step + step + 1;
    if (recorded != static_cast<double>(updates)) {
      recording_.refuse(
          key, "expected " + std::to_string(updates) + ", found " + std::to_string(recorded));
    }
    return true;
  }

  // A rule with states that has updated before has some.
  bool has_start(const ParamInfo& param) const {
    return std::ranges::any_of(states_of(header_.rule, param.shape), [&](const StateSpec& state) {
      return header_.first_step > 0 ||
             recording_.catalog().find_tensor(start_key(state, param)) != nullptr;
    });
  }

  static constexpr std::string_view kParam = "param";

  TraceHeader header_;
  Recording recording_;
  int64_t step_count_;
};

// One parameter of the trace, being replayed.
struct TracedParam {
  const ParamInfo* info = nullptr;
  at::Tensor param;
  ParamState state;
};

class TraceReplay {
 public:
  TraceReplay(const Trace& trace, const CheckOptions& options)
      : trace_(trace), options_(options), rule_(make_rule(trace.header().rule)) {
    report_.name = trace.header().name;
    report_.steps = trace.step_count();
    report_.passed = true;
    for (const ParamInfo& info : trace.header().params) {
      params_.push_back({&info, trace.initial(info), trace.start(info)});
    }
  }

  TraceReport run() {
    for (int64_t step = 0; step < trace_.step_count(); ++step) {
      for (TracedParam& param : params_) {
        if (options_.from_recorded_state && step > 0) restore(step - 1, param);
        update(step, param);
        check(step, "param", param, param.param);
        for (const auto& [name, tensor] : param.state) check(step, name, param, tensor);
      }
    }
    return report_;
  }

 private:
  void restore(int64_t step, TracedParam& param) {
    param.param = trace_.after(step, "param", *param.info);
    for (auto& [name, tensor] : param.state) tensor = trace_.after(step, name, *param.info);
  }

  void update(int64_t step, TracedParam& param) {
    const TraceHeader::Rates rates = trace_.rates(step);
    rule_->update({param.info, param.param, trace_.grad(step, *param.info), &param.state},
                  {.lr = rates.lr,
                   .weight_decay = rates.weight_decay,
                   .step = trace_.header().first_step + step + 1});
  }

  void check(int64_t step, const std::string& what, const TracedParam& param,
             const at::Tensor& ours) {
    const double rtol = options_.tolerance ? options_.tolerance->rtol : 0;
    const Difference difference = compare(ours, trace_.after(step, what, *param.info), rtol);
    const TraceBound& bound = trace_.header().bound;
    const bool within = options_.tolerance ? difference.excess <= options_.tolerance->atol
                                           : difference.max_scaled <= bound.max_scaled &&
                                                 difference.max_ulp <= bound.max_ulp;
    report_.passed = report_.passed && within;
    const bool is_first = report_.worst.tensor.empty();
    if (is_first || difference.max_scaled > report_.worst.difference.max_scaled) {
      report_.worst = {what + "." + param.info->name, step, difference};
    }
  }

  const Trace& trace_;
  const CheckOptions& options_;
  std::unique_ptr<UpdateRule> rule_;
  std::vector<TracedParam> params_;
  TraceReport report_;
};

}  // namespace

TraceReport check_trace(const std::filesystem::path& json_file, const CheckOptions& options) {
  const SingleThread single_thread;
  const at::NoGradGuard no_grad;
  const Trace trace(json_file, options.era);
  return TraceReplay(trace, options).run();
}

void validate_trace(const std::filesystem::path& json_file, const CheckOptions& options) {
  read_trace_header(json_file, options.era);
}

}  // namespace optim
