#pragma once

#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "inspect/load/resume.h"

// The options of Megatron-LM's command line in each release: megatron_options.tsv, which
// tests/can_load/list_options.py prints.
namespace tools::inspect {

struct MegatronOption {
  enum class Kind : uint8_t { Value, List, True, False, Either };

  std::vector<std::string_view> spellings;  // "--lr"
  std::string_view argument;                // as a run's args name it
  std::vector<std::string_view> arguments;  // as any release names it
  Kind kind = Kind::Value;
  std::string_view type;  // of a value: "int", "float", "str" or a function of Megatron
  nlohmann::json preset;  // where it is not given
};

std::vector<MegatronOption> options_of(MegatronTree tree);

// Whether a release has an option, "--lr", or only others do.
enum class OptionIn : uint8_t { Release, Others, None };
OptionIn where_is(std::string_view spelling, MegatronTree tree);

}  // namespace tools::inspect
