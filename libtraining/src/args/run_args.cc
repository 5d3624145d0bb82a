#include "args/run_args.h"

#include <ckpt/error.h>
#include <ckpt/files_beside.h>

namespace optim {

using ckpt::Kind;
using ckpt::Value;

std::optional<Value> args_of(const Value& root) {
  const auto args = root.is(Kind::Dict) ? root.find("args") : std::nullopt;
  const bool is_namespace = args && args->is(Kind::Object) && args->state();
  return is_namespace && args->state()->is(Kind::Dict) ? args->state() : std::nullopt;
}

RunArgs::RunArgs(const ckpt::Checkpoint& checkpoint) {
  if (checkpoint.catalog().format == ckpt::Format::TorchDist) {
    try {
      common_ = read_common_state(checkpoint);
    } catch (const ckpt::Error& error) {
      if (error.code() == ckpt::ErrorCode::IoFailure) throw;
      return;  // a finding of who reads it for what it holds
    }
    if (!common_) return;
    file_ = common_->file;
    args_ = args_of(common_->document->tree.root());
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

std::string bridge_config(const ckpt::Checkpoint& checkpoint) {
  return ckpt::text_beside(checkpoint, "run_config.yaml");
}

bool is_of_bridge(const ckpt::Checkpoint& checkpoint) {
  return !RunArgs(checkpoint).are_there() &&
         bridge_config(checkpoint).find("megatron.bridge.") != std::string::npos;
}

}  // namespace optim
