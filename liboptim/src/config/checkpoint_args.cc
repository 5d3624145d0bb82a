#include <optim/checkpoint_args.h>

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "config/config_fields.h"
#include "rules/refuse_key.h"
#include "rules/rows.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

[[noreturn]] void refuse_arg(ckpt::ErrorCode code, std::string_view field, std::string problem) {
  refuse_key("args." + std::string(field), std::move(problem), code);
}

void require_arg(bool right, std::string_view field, std::string_view expected) {
  if (right) return;
  refuse_arg(ckpt::ErrorCode::Corrupt, field, "the value is not " + std::string(expected));
}

// One overload per type of field.
void read(std::string_view field, const Value& arg, bool& value) {
  require_arg(arg.is(Kind::Bool), field, "True or False");
  value = arg.as_bool();
}
void read(std::string_view field, const Value& arg, int64_t& value) {
  require_arg(arg.is(Kind::Int), field, "an int of 64 bits");
  value = arg.as_int();
}
void read(std::string_view field, const Value& arg, double& value) {
  require_arg(arg.is(Kind::Int) || arg.is(Kind::Float), field, "a number");
  value = arg.as_float();
}
void read(std::string_view field, const Value& arg, std::string& value) {
  require_arg(arg.is(Kind::Str), field, "a str");
  value = arg.text();
}
void read(std::string_view field, const Value& arg, ckpt::DType& value) {
  require_arg(arg.is(Kind::Global) && arg.module() == "torch", field, "a torch.dtype");
  const std::optional<ckpt::DType> dtype = ckpt::dtype_named(arg.name());
  require_arg(dtype.has_value(), field, "a torch.dtype");
  value = *dtype;
}
template <typename Mode>
requires std::is_enum_v<Mode>
void read(std::string_view field, const Value& arg, Mode& value) {
  std::string text;
  read(field, arg, text);
  const std::optional<Mode> mode = mode_named<Mode>(text);
  if (!mode) {
    refuse_arg(ckpt::ErrorCode::Unsupported, field, "'" + ckpt::escaped(text) + "' is not known");
  }
  value = *mode;
}
template <typename T>
void read(std::string_view field, const Value& arg, std::optional<T>& value) {
  if (arg.is_none()) {
    value.reset();
  } else {
    read(field, arg, value.emplace());
  }
}

// argparse gives fp8_recipe a default that means something only beside --fp8-format.
bool is_meant(const Value& args, std::string_view field) {
  if (field != "fp8_recipe") return true;
  const std::optional<Value> fp8 = args.find("fp8");
  return fp8 && !fp8->is_none();
}

// What Megatron-Core called differently up to 0.16: muon_use_nesterov, --optimizer dist_muon.
void read_old_names(const Value& args, OptimizerConfig& config) {
  const std::optional<Value> nesterov = args.find("muon_use_nesterov");
  if (nesterov && !args.find("muon_nesterov")) {
    read("muon_use_nesterov", *nesterov, config.muon_nesterov);
  }
  if (config.optimizer.starts_with("dist_")) {
    config.optimizer.erase(0, std::string_view("dist_").size());
    config.use_layer_wise_distributed_optimizer = true;
  }
}

int64_t positive(const Value& args, std::string_view field) {
  const std::optional<Value> arg = args.find(field);
  if (!arg) refuse_arg(ckpt::ErrorCode::Corrupt, field, "is missing from the checkpoint's args");
  int64_t value = 0;
  read(field, *arg, value);
  require_arg(value > 0, field, "positive");
  return value;
}

bool flag(const Value& args, std::string_view field) {
  bool value = false;
  if (const std::optional<Value> arg = args.find(field)) read(field, *arg, value);
  return value;
}

}  // namespace

OptimizerConfig config_from_args(const Value& args) {
  OptimizerConfig config;
  for_each_field(config, [&](const char* field, auto& value) {
    if (!is_meant(args, field)) return;
    if (const std::optional<Value> arg = args.find(field)) read(field, *arg, value);
  });
  read_old_names(args, config);
  return config;
}

QkvSplit qkv_split_from_args(const Value& args) {
  if (flag(args, "attention_output_gate")) {
    refuse_arg(ckpt::ErrorCode::Unsupported, "attention_output_gate",
               "gated attention is not handled");
  }
  const int64_t heads = positive(args, "num_attention_heads");
  const int64_t channels = positive(args, "kv_channels");
  // num_query_groups has the default 1 also where attention is not grouped.
  const int64_t groups =
      flag(args, "group_query_attention") ? positive(args, "num_query_groups") : heads;
  require_arg(heads % groups == 0, "num_query_groups", "a divisor of num_attention_heads");
  constexpr int64_t kRowsMax = int64_t{1} << 40;  // of a query group: query, key and value
  require_arg(heads / groups <= kRowsMax / channels - 2, "kv_channels",
              "small enough for the shape of a weight");
  return {.query_rows = heads / groups * channels, .key_rows = channels, .value_rows = channels};
}

}  // namespace optim
