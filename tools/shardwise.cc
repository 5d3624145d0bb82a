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

struct Entry {
  std::string_view word;  // its name has "ckpt-" in front, or not
  tools::Program (*program)();
};

constexpr Entry kPrograms[] = {
    {"inspect", tools::inspect_program},
    {"convert", tools::convert_program},
    {"reshard", tools::reshard_program},
};

const Entry* find_program(std::string_view name) {
  const auto found = std::ranges::find_if(kPrograms, [&](const Entry& entry) {
    return name == entry.word || name == "ckpt-" + std::string(entry.word);
  });
  return found == std::end(kPrograms) ? nullptr : found;
}

// Which of the words names the program: the first that is not an option, but for `help`.
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
  if (const Entry* entry = find_program(started_as.filename().native())) {
    return tools::run_program(entry->program(), argc, argv);
  }
  const int index = index_of_program(argc, argv);
  if (const Entry* entry = index < argc ? find_program(argv[index]) : nullptr) {
    std::rotate(argv + 1, argv + index, argv + index + 1);
    return tools::run_program(entry->program(), argc - 1, argv + 1);
  }
  const tools::ToolInfo tool = {
      .name = "shardwise",
      .description = "Looks at checkpoints of large training runs, and rewrites them.",
      .examples = {"shardwise inspect ckpt/", "shardwise convert ckpt/ ckpt_torch/ --to torch",
                   "shardwise reshard ckpt/ ckpt_dp4/ --dp 4"}};
  std::vector<tools::Command> commands;
  for (const auto& [word, program] : kPrograms) {
    const tools::ToolInfo of = program().tool;
    const tools::ToolInfo info = {.name = std::string(word),
                                  .description = of.name + ": " + of.description};
    commands.push_back(tools::make_command<NoOptions>(info, refuse_options_before));
  }
  return tools::run_commands(tool, argc, argv, commands);
}
