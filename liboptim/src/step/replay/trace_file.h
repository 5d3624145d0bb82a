#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <optim/update_rule.h>

namespace optim {

// The largest differences of a tensor that pass.
struct TraceBound {
  double max_scaled = std::numeric_limits<double>::infinity();
  double max_ulp = std::numeric_limits<double>::infinity();
};

// The JSON part of a trace, understood.
struct TraceHeader {
  std::string name;
  RuleConfig rule;
  double lr = 0, weight_decay = 0;
  TraceBound bound;  // for this algorithm and precision
  std::vector<ParamInfo> params;
};
TraceHeader read_trace_header(const std::filesystem::path& json_file);

// Both parts. Tensors are read when they are asked for.
class Trace {
 public:
  explicit Trace(const std::filesystem::path& json_file);

  const TraceHeader& header() const { return header_; }
  int64_t step_count() const { return step_count_; }

  // fp32 of the parameter's shape; throws Corrupt when it is absent or anything else.
  at::Tensor initial(const ParamInfo& param) const;
  at::Tensor grad(int64_t step, const ParamInfo& param) const;
  at::Tensor after(int64_t step, std::string_view what, const ParamInfo& param) const;

 private:
  at::Tensor read(const std::string& key, const ParamInfo& param) const;
  int64_t count_steps() const;

  TraceHeader header_;
  ckpt::Checkpoint tensors_;
  std::string tensors_file_;
  int64_t step_count_;
};

}  // namespace optim
