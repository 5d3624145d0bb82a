// How a run is started, as a file states it: a shell script, of which nothing is run, the words of
// its commands, and the options of Megatron-LM's command line that they are.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/load/resume.h"

namespace tools::inspect {

struct ShellWord {
  std::string text;
  std::string missing = {};  // why the file does not tell what it is; empty: it does
};

struct ShellCommand {
  uint64_t line = 0;  // where it begins, from 1
  std::vector<ShellWord> words;
};

// Assignments, arrays, quotes, $NAME, ${NAME}, ${NAME[@]} and ${NAME:-TEXT} are understood; what a
// program, a condition, the environment or a caller says is missing. Commands within quoted words
// ("srun sh -c '...'") come behind the one that has them. Throws Corrupt for a quote or an array
// that does not end.
std::vector<ShellCommand> shell_commands(std::string_view script);

struct Launch {
  // Of a command line: each option with its words, the last one where it is repeated.
  std::map<std::string, std::vector<ShellWord>> options = {};
  std::string missing = {};  // why the options cannot be told; empty: they can
  // Of arguments that a run printed, after it checked them: all of them, by Megatron's names.
  bool is_printed = false;
  nlohmann::json printed = nlohmann::json::object();
  std::optional<uint64_t> processes = {};
};

// A shell script or command line that starts a Python program, the arguments that Megatron printed
// into its log, or a JSON object of them. Throws NotFound, IoFailure; Corrupt where it is not one
// of these, InvalidArgument where it starts two programs.
Launch read_launch(const std::filesystem::path& file);

// Sets in `run` what the launch does otherwise than the run that wrote the checkpoint; what `run`
// has already is left as it is. What the launch does not say is the release's default.
void add_launch(const Launch& launch, const ResumeFacts& checkpoint, ResumeRun& run);

// An option of Megatron-LM's command line: of known_arguments().
struct MegatronOption {
  enum class Kind : uint8_t { Value, List, True, False, Either };

  std::string_view trees;                        // "1" for each that has it, "0" for the others
  std::vector<std::string_view> spellings;       // "--lr"
  std::string_view argument;                     // as a run's args name it
  std::vector<std::string_view> arguments = {};  // as any release names it
  Kind kind = Kind::Value;
  std::string_view type;  // of a value: "int", "float", "str" or a function of Megatron
  nlohmann::json preset;  // where it is not given
};

std::vector<MegatronOption> options_of(MegatronTree tree);

// Whether a release has an option, "--lr", or only others do.
enum class OptionIn : uint8_t { Release, Others, None };
OptionIn where_is(std::string_view spelling, MegatronTree tree);

}  // namespace tools::inspect
