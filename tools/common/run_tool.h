#pragma once

#include <common/console.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace tools {

// A tool, or one subcommand of a tool, for --help.
struct ToolInfo {
  std::string name;         // "reshard"; of a subcommand "ls", or "" for the one without a word
  std::string description;  // one sentence
  std::vector<std::string> examples = {};  // three whole command lines
  // Long names, without dashes, of the options that --help shows, in order; the others are
  // --help-all's. Without arguments and required ones. Empty: --help shows all.
  std::vector<std::string> most_used = {};
  // For --help. What is left on stdout under --quiet, what --verbose adds, what exit code 1 means
  // (empty: there is none), and whether the command has a progress line.
  std::string quiet = "Only the result";
  std::string verbose = {};
  std::string exit_1 = {};
  bool has_progress = false;
};

// One subcommand, its type erased: declare() adds its options to the parser and returns what runs
// it.
struct Command {
  ToolInfo info;
  std::function<std::function<int(Console&)>(CLI::App&)> declare;
};

// `Options` has `void declare(CLI::App&)`, which adds its own options (the common ones are there
// already). `run` returns the exit code: 0, or 1 for "compared and different"; everything else is
// thrown.
template <class Options>
Command make_command(ToolInfo info, int (*run)(const Options&, Console&)) {
  return {std::move(info), [run](CLI::App& app) -> std::function<int(Console&)> {
            auto options = std::make_shared<Options>();
            options->declare(app);
            return [run, options](Console& console) { return run(*options, console); };
          }};
}

// The whole of a main(): parses, runs, prints what was thrown, returns the exit code of the
// contract. ckpt::Error: 2 InvalidArgument, 3 Corrupt, 4 Unsupported, 5 NotFound, AlreadyExists,
// IoFailure. CLI11's errors 2. What the system denies (memory, threads, a stdout to write to): 5. A
// bug of ours: 70. A signal, where the command asked for a stop token: 128 + signal.
int run_commands(const ToolInfo& tool, int argc, char** argv, const std::vector<Command>& commands);

// Object stores and web servers as they are from now on. For the whole of a run, but for one that
// waits for something new: what was seen of an object first holds.
void look_at_remote_places();

// A program: what --help says of it, and its commands.
struct Program {
  ToolInfo tool;
  std::vector<Command> commands;
};
inline int run_program(const Program& program, int argc, char** argv) {
  return run_commands(program.tool, argc, argv, program.commands);
}

// A command inside of another process, of which nothing is changed: `words` are what follows the
// program's name. Returns the exit code, 0 or 1; throws what a command line would exit for, wrong
// usage as ckpt::Error(InvalidArgument).
int run_hosted(const Program& program, std::vector<std::string> words, Host& host);

}  // namespace tools
