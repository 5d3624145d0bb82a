// shardwise: all programs without LibTorch in one binary. Which one it is says the name that it was
// started by, or else the first word.
#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/error.h>
#include <common/run_tool.h>
#include <programs.h>
#include <CLI/CLI.hpp>

namespace {

struct Program {
  std::string_view name, word, description;
  int (*run)(int argc, char** argv);
};

constexpr Program kPrograms[] = {
    {"ckpt-inspect", "inspect", "ckpt-inspect: what a checkpoint holds", tools::run_inspect},
    {"ckpt-convert", "convert", "ckpt-convert: the same checkpoint in another format",
     tools::run_convert},
    {"reshard", "reshard", "reshard: the same checkpoint for other parallel sizes",
     tools::run_reshard},
};

const Program* find_program(std::string_view name) {
  const auto found = std::ranges::find_if(kPrograms, [&](const Program& program) {
    return name == program.name || name == program.word ||
           name == "ckpt-" + std::string(program.word);
  });
  return found == std::end(kPrograms) ? nullptr : found;
}

// Which of the words names the program: the first that is no option, but for `help`.
int index_of_program(int argc, char** argv) {
  int index = 1;
  while (index < argc && (argv[index][0] == '-' || std::string_view(argv[index]) == "help")) {
    ++index;
  }
  return index;
}

struct NoOptions {
  void declare(CLI::App&) {}
};

// Of a program's word after an option's value.
int refuse_options_before(const NoOptions&, tools::Console&) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                    "the program comes first: shardwise inspect PATH");
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path started_as = argc > 0 ? argv[0] : "";
  if (const Program* program = find_program(started_as.filename().native())) {
    return program->run(argc, argv);
  }
  const int index = index_of_program(argc, argv);
  if (const Program* program = index < argc ? find_program(argv[index]) : nullptr) {
    std::rotate(argv + 1, argv + index, argv + index + 1);
    return program->run(argc - 1, argv + 1);
  }
  const tools::ToolInfo tool = {
      .name = "shardwise",
      .description = "Looks at checkpoints of large training runs, and rewrites them.",
      .examples = {"shardwise inspect ckpt/", "shardwise convert ckpt/ ckpt_torch/ --to torch",
                   "shardwise reshard ckpt/ ckpt_dp4/ --dp 4"}};
  std::vector<tools::Command> commands;
  for (const Program& program : kPrograms) {
    const tools::ToolInfo info = {.name = std::string(program.word),
                                  .description = std::string(program.description)};
    commands.push_back(tools::make_command<NoOptions>(info, refuse_options_before));
  }
  return tools::run_commands(tool, argc, argv, commands);
}
