#include <string_view>
#include <utility>

#include "args/run_args.h"
#include "verify/checks.h"

namespace optim {
namespace {

// Settings of Megatron-LM (args) and of Megatron Bridge (run_config.yaml).
constexpr std::pair<std::string_view, std::string_view> kSettings[] = {
    {"fp8_param_gather", "weights are kept in fp8, so they differ from the rounded masters"},
    {"fp8_param", "weights are kept in fp8, so they differ from the rounded masters"},
    {"fp4_param_gather", "weights are kept in fp4, so they differ from the rounded masters"},
    {"fp4_param", "weights are kept in fp4, so they differ from the rounded masters"},
    {"use_precision_aware_optimizer",
     "the optimizer stores its masters as remainders or scaled values"},
};

// A line "  NAME: true" of a YAML file.
bool has_true(std::string_view yaml, std::string_view name) {
  while (!yaml.empty()) {
    std::string_view line = yaml.substr(0, yaml.find('\n'));
    yaml.remove_prefix(std::min(line.size() + 1, yaml.size()));
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    if (line.starts_with(": true")) return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> why_weights_may_differ(const OpenedTraining& checkpoint) {
  const RunArgs& args = checkpoint.args();
  const std::string config = args.are_there() ? std::string() : bridge_config(checkpoint);
  for (const auto& [name, reason] : kSettings) {
    if (args.is_true(name) || has_true(config, name)) {
      return std::string(reason) + " (" + std::string(name) + ")";
    }
  }
  return std::nullopt;
}

}  // namespace optim
