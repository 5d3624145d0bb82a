#include "convert/argument_check.h"

#include <algorithm>
#include <string_view>

#include <ckpt/error.h>
#include <training/size_change.h>

#include "args/known_arguments.h"

namespace optim {
namespace {

// Names modules that Megatron lacks; rows of --model-rules say what they are.
constexpr std::string_view kOwnModules = "spec";

bool is_laid_out_anew(const FiledState& view, const ConvertOptions& options) {
  if (options.base.format.value_or(view.filed.container) != view.filed.container) return true;
  return !options.sizes.empty() && target_grid(view, options.sizes) != view.grid;
}

std::string text_of_unknown(const std::vector<std::string>& names) {
  constexpr size_t kShown = 20;
  const std::string count = std::to_string(names.size());
  std::string text = names.size() == 1
                         ? "args has an argument that this version does not know ("
                         : "args has " + count + " arguments that this version does not know (";
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += ", and " + std::to_string(names.size() - kShown) + " more";
  return text + "): whether they change the layout is not known";
}

}  // namespace

std::vector<std::string> check_arguments(const FiledState& view, const OpenedTraining& source,
                                         const ConvertOptions& options) {
  if (!is_laid_out_anew(view, options)) return {};
  using ckpt::Error, ckpt::ErrorCode;
  for (const RefusedArgument& refused : refused_arguments(view.args())) {
    if (options.rules != nullptr && refused.name == kOwnModules) continue;
    throw Error(ErrorCode::Unsupported,
                {.file = source.shown_path(), .key = "args." + refused.name}, refused.problem,
                refused.instead);
  }
  const std::vector<std::string> unknown = unknown_arguments(view.args());
  if (unknown.empty()) return {};
  const std::string text = text_of_unknown(unknown);
  if (options.base.strict) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}}, text,
                "without --strict it is converted as if they did not, and they are listed");
  }
  return {text};
}

}  // namespace optim
