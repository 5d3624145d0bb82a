#include "args/run_args.h"

#include <ckpt/error.h>
#include <ckpt/files_beside.h>

#include "args/common_state.h"

namespace optim {

using ckpt::Kind;
using ckpt::Value;

std::optional<Value> args_of(const Value& root) {
  const auto args = root.is(Kind::Dict) ? root.find("args") : std::nullopt;
  const bool is_namespace = args && args->is(Kind::Object) && args->state();
  return is_namespace && args->state()->is(Kind::Dict) ? args->state() : std::nullopt;
}

RunArgs::RunArgs(const OpenedTraining& checkpoint) {
  if (checkpoint.catalog().format == ckpt::Format::TorchDist) {
    const CommonState* common = nullptr;
    try {
      common = checkpoint.common_state();
    } catch (const ckpt::Error& error) {
      if (error.code() == ckpt::ErrorCode::IoFailure) throw;
      return;  // a finding of who reads it for what it holds
    }
    if (common == nullptr) return;
    file_ = common->file;
    args_ = args_of(common->document->tree.root());
    return;
  }
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    const ckpt::Document* document = checkpoint.document(file.path);
    if (document == nullptr || !file.path.ends_with("model_optim_rng.pt")) continue;
    file_ = file.path;
    args_ = args_of(document->tree.root());
    return;
  }
}

bool RunArgs::is_true(std::string_view name) const {
  const auto value = args_ ? args_->find(name) : std::nullopt;
  return value && value->is(Kind::Bool) && value->as_bool();
}

std::string RunArgs::text(std::string_view name) const {
  const auto value = args_ ? args_->find(name) : std::nullopt;
  return value && value->is(Kind::Str) ? ckpt::escaped(value->text()) : std::string();
}

bool RunArgs::is_false(std::string_view name) const {
  const auto value = args_ ? args_->find(name) : std::nullopt;
  return value && value->is(Kind::Bool) && !value->as_bool();
}

uint32_t RunArgs::size(std::string_view name) const {
  const auto value = args_ ? args_->find(name) : std::nullopt;
  const bool is_size =
      value && value->is(Kind::Int) && value->as_int() >= 1 && value->as_int() <= INT32_MAX;
  return is_size ? static_cast<uint32_t>(value->as_int()) : 1;
}

std::string bridge_config(const OpenedTraining& checkpoint) {
  return ckpt::text_beside(checkpoint, "run_config.yaml");
}

bool is_of_bridge(const OpenedTraining& checkpoint) {
  return !checkpoint.args().are_there() &&
         bridge_config(checkpoint).find("megatron.bridge.") != std::string::npos;
}

}  // namespace optim
