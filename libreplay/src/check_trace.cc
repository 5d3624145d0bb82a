#include <replay/trace.h>

#include <ATen/core/grad_mode.h>

#include <map>
#include <memory>
#include <utility>

#include "step/loops/single_thread.h"
#include "trace_file.h"

namespace optim {
namespace {

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
