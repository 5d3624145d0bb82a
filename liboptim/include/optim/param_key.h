#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/dtype.h>
#include <optim/layout_export.h>

namespace optim {

// What Megatron's model code sets on a parameter as Python attributes.
struct OPTIM_LAYOUT_EXPORT ParamAttributes {
  bool allreduce = true;               // false: an expert's parameter, reduced over expert ranks
  bool tensor_model_parallel = false;  // split over tensor parallel ranks along partition_dim
  bool shared = false;                 // a second copy of a tied weight: not in the gradient norm
  bool is_embedding_or_output_parameter = false;
  bool is_qkv = false;
  bool expert_tp = false;
  bool use_muon = true;               // false: never by an emerging optimizer
  int partition_dim = -1;             // -1: none
  std::set<std::string> others = {};  // names of further attributes that are true

  // getattr(param, name, False) as Python sees it: partition_dim is true when it is above 0.
  bool truthy(std::string_view name) const;
  bool operator==(const ParamAttributes&) const = default;
};

struct ParamInfo {
  std::string name = {};
  std::vector<int64_t> shape = {};
  ckpt::DType dtype = ckpt::DType::Float32;
  bool requires_grad = true;
  ParamAttributes attributes = {};
};

// Elements of a parameter. Throws Error(InvalidArgument) for a negative size or more than 2^63 - 1.
OPTIM_LAYOUT_EXPORT uint64_t element_count(const ParamInfo& param);

// The attributes that Megatron's GPTModel and its optimizer factory give a parameter of this name
// ("decoder.layers.0.mlp.linear_fc1.weight") and dimension count. Learned position embeddings are
// not is_embedding_or_output_parameter, as in the reference. `allreduce` stays true: experts have
// it false only where expert_parallel is above 1.
OPTIM_LAYOUT_EXPORT ParamAttributes megatron_attributes(std::string_view name, size_t dim_count);

// Wrapped matching functions: callable; equal, and equal in hash, when their names are.
struct ParamPredicate {
  std::string name;
  std::function<bool(const ParamInfo&)> fn;
  bool operator()(const ParamInfo& param) const { return fn(param); }
  bool operator==(const ParamPredicate& other) const { return name == other.name; }
};
struct ParamWithNamePredicate {
  std::string name;
  std::function<bool(const ParamInfo&, std::string_view)> fn;
  bool operator()(const ParamInfo& param, std::string_view param_name) const {
    return fn(param, param_name);
  }
  bool operator==(const ParamWithNamePredicate& other) const { return name == other.name; }
};

// Selects parameters: any match of any member suffices; an empty key matches none.
struct OPTIM_LAYOUT_EXPORT ParamKey {
  std::vector<std::string> name = {};  // globs, as glob_matches() reads them
  std::vector<std::string> attr = {};  // attributes that must be true
  std::vector<ParamPredicate> predicate = {};
  std::vector<ParamWithNamePredicate> with_name_predicate = {};

  bool matches(const ParamInfo& param, std::string_view param_name) const;
  bool operator==(const ParamKey&) const = default;
};

// Python's fnmatch.fnmatch on Linux: case-sensitive, over the whole of `text` (UTF-8, compared by
// code point). `*` any run, `?` one character, `[seq]` one of seq, `[!seq]` one that is not; a `[`
// without its `]` is itself.
bool glob_matches(std::string_view glob, std::string_view text);

}  // namespace optim

template <>
struct std::hash<optim::ParamPredicate> {
  size_t operator()(const optim::ParamPredicate& p) const noexcept {
    return std::hash<std::string>{}(p.name);
  }
};
template <>
struct std::hash<optim::ParamWithNamePredicate> {
  size_t operator()(const optim::ParamWithNamePredicate& p) const noexcept {
    return std::hash<std::string>{}(p.name);
  }
};
