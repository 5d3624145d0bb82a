#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// A shell script read as data: which words its commands have. Nothing of it is run.
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

}  // namespace tools::inspect
