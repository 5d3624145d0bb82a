#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <replay/trace.h>

#include "recording.h"

namespace optim {

// The JSON part of a trace, understood.
struct TraceHeader {
  std::string name;
  RuleConfig rule;
  double lr = 0, weight_decay = 0;
  int64_t first_step = 0;  // updates before the first one
  struct Rates {
    double lr = 0, weight_decay = 0;
  };
  std::vector<Rates> rates;  // of each step; empty: lr and weight_decay
  TraceBound bound;          // for this algorithm and precision
  std::vector<ParamInfo> params;
};
// `era`: of emerging_optimizers, which a trace does not say.
TraceHeader read_trace_header(const std::filesystem::path& json_file, EmergingOptimizers era);

// Both parts. Tensors are read when they are asked for.
class Trace {
 public:
  // Throws Corrupt, with the key, unless the file has every tensor of every step, of the shape and
  // type that it must have, and no other.
  Trace(const std::filesystem::path& json_file, EmergingOptimizers era);

  const TraceHeader& header() const { return header_; }
  int64_t step_count() const { return step_count_; }

  TraceHeader::Rates rates(int64_t step) const;

  // States before the first step; empty: the rule makes them.
  ParamState start(const ParamInfo& param) const;
  // fp32; of the parameter's shape, or of the state's.
  at::Tensor initial(const ParamInfo& param) const;
  at::Tensor grad(int64_t step, const ParamInfo& param) const;
  at::Tensor after(int64_t step, std::string_view what, const ParamInfo& param) const;

 private:
  at::Tensor read(const std::string& key, const TensorForm& form) const;
  void check_tensors() const;
  bool has_start(const ParamInfo& param) const;
  bool is_step_recorded(int64_t step, const ParamInfo& param) const;

  TraceHeader header_;
  Recording recording_;
  int64_t step_count_;
};

}  // namespace optim
