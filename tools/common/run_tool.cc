#include "common/run_tool.h"

#include <ckpt/error.h>
#include <common/option_values.h>
#include <common/process_setup.h>
#include <common/report_error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <optional>

namespace tools {
namespace {

using Words = std::vector<std::string>;

// CLI11's page without the second empty line between groups of options.
class HelpPage : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;) text.erase(at, 1);
    return text;
  }
};

// A parser with its command's options declared. Not movable: the parser holds addresses into it.
struct Parser {
  explicit Parser(const ToolInfo& info) : app(info.description + "\n", info.name) {
    app.formatter(std::make_shared<HelpPage>());
  }
  CLI::App app;
  CommonOptions common;
  std::function<int(Console&)> run;
};

void declare_common(CLI::App& app, CommonOptions& common) {
  const char* group = "Common options";
  app.set_help_flag();  // taken out and added again: --help lists groups in order of declaration
  app.set_help_flag("-h,--help", "This page")->group(group);
  app.set_version_flag("--version", app.get_name() + " (Shardwise) " SHARDWISE_VERSION,
                       "The version")
      ->group(group);
  app.add_flag("--json", common.json, "One JSON document on stdout (docs/schema)")->group(group);
  app.add_flag("-q,--quiet", common.quiet, "No warnings, notes or progress")->group(group);
  app.add_flag("-v,--verbose", common.verbose, "More detail")->group(group);
  app.add_flag_callback(
         "--no-progress", [&common] { common.progress = false; }, "No progress line on stderr")
      ->group(group);
  add_choice<ColorMode>(
      app, "--color", common.color,
      {{"auto", ColorMode::Auto}, {"always", ColorMode::Always}, {"never", ColorMode::Never}})
      ->description("auto: on a terminal without NO_COLOR")
      ->group(group);
  app.add_option("-j,--threads", common.threads, "Threads (default: one per core)")
      ->check(CLI::Range(0, 4096).description(""))
      ->option_text("N")
      ->group(group);
}

std::string examples_text(const Words& examples) {
  std::string text = examples.empty() ? "" : "Examples:\n";
  for (const std::string& example : examples) text += "  " + example + "\n";
  return text;
}

std::string commands_text(const std::vector<Command>& commands) {
  std::string text;
  for (const Command& command : commands) {
    if (command.info.name.empty()) continue;
    if (text.empty()) text = "Commands (each has its own --help):\n";
    text += "  " + command.info.name +
            std::string(12 - std::min<size_t>(11, command.info.name.size()), ' ') +
            command.info.description + "\n";
  }
  return text.empty() ? text : text + "\n";
}

std::unique_ptr<Parser> make_parser(const ToolInfo& tool, const Command& command) {
  ToolInfo info = command.info;
  info.name = tool.name + (info.name.empty() ? "" : " " + info.name);
  auto parser = std::make_unique<Parser>(info);
  parser->run = command.declare(parser->app);
  declare_common(parser->app, parser->common);
  parser->app.footer(examples_text(info.examples));
  return parser;
}

// What parses when no word is a subcommand's: the nameless command, or a parser that only knows the
// common options.
std::unique_ptr<Parser> make_default_parser(const ToolInfo& tool,
                                            const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (!command.info.name.empty()) continue;
    auto parser = make_parser(tool, command);
    parser->app.description(tool.description + "\n");
    parser->app.footer(commands_text(commands) + examples_text(tool.examples));
    return parser;
  }
  auto parser = std::make_unique<Parser>(tool);
  declare_common(parser->app, parser->common);
  parser->app.footer(commands_text(commands) + examples_text(tool.examples));
  return parser;
}

bool takes_value(const CLI::App& app, const std::string& word) {
  const CLI::Option* option = app.get_option_no_throw(word);
  return option != nullptr && option->get_items_expected_min() > 0;
}

// Index of the first word that is neither an option nor an option's value; nothing after "--" is a
// command.
std::optional<size_t> first_word(const CLI::App& app, const Words& words) {
  for (size_t index = 0; index < words.size(); ++index) {
    if (words[index] == "--") return std::nullopt;
    if (words[index].size() < 2 || words[index][0] != '-') return index;
    if (takes_value(app, words[index])) ++index;
  }
  return std::nullopt;
}

[[noreturn]] void throw_unbuilt(const std::string& word) {
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {},
                    "'" + ckpt::escaped(word) + "' is not built into this version");
}

void refuse_unbuilt_options(const ToolInfo& info, const Words& words) {
  for (const std::string& word : words) {
    if (word == "--") return;
    const std::string name = word.substr(0, word.find('='));
    if (std::find(info.unbuilt.begin(), info.unbuilt.end(), name) != info.unbuilt.end()) {
      throw_unbuilt(name);
    }
  }
}

const Command* find_command(const std::vector<Command>& commands, const std::string& name) {
  const auto found = std::find_if(commands.begin(), commands.end(), [&](const Command& command) {
    return command.info.name == name;
  });
  return found == commands.end() ? nullptr : &*found;
}

// Takes the subcommand's word out of `words` and gives back the parser that is to read the rest.
std::unique_ptr<Parser> choose_parser(const ToolInfo& tool, const std::vector<Command>& commands,
                                      Words& words) {
  auto parser = make_default_parser(tool, commands);
  const std::optional<size_t> index = first_word(parser->app, words);
  const std::string word = index ? words[*index] : "";
  if (std::find(tool.unbuilt.begin(), tool.unbuilt.end(), word) != tool.unbuilt.end()) {
    throw_unbuilt(word);
  }
  const Command* command = word.empty() ? nullptr : find_command(commands, word);
  if (command != nullptr) {
    words.erase(words.begin() + static_cast<ptrdiff_t>(*index));
    parser = make_parser(tool, *command);
  } else if (parser->run) {
    command = find_command(commands, "");
  } else if (index) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      "no command '" + ckpt::escaped(word) + "'", "see " + tool.name + " --help");
  }
  if (command != nullptr) refuse_unbuilt_options(command->info, words);
  return parser;
}

bool asks_for_json(const Words& words) {
  const auto end = std::find(words.begin(), words.end(), "--");
  return std::find(words.begin(), end, "--json") != end;
}

int fail(const std::string& tool, Failure failure, bool json) {
  std::cout.flush();
  report_failure(tool, failure, json);
  return failure.exit_code;
}

// A reader that went away is caught by SIGPIPE; a full disk under a redirected stdout is caught
// here.
void flush_stdout() {
  std::cout.flush();
  if (!std::cout) throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "cannot write to stdout");
}

int run_parser(Parser& parser, const ToolInfo& tool) {
  Console console(tool.name, parser.common);
  try {
    const int exit_code = parser.run(console);
    flush_stdout();
    return exit_code;
  } catch (...) {
    Failure failure = describe_failure(std::current_exception());
    if (console.stop_signal() != 0) failure = stopped_by(console.stop_signal(), failure);
    return fail(tool.name, std::move(failure), parser.common.json);
  }
}

// CLI11 says --help and --version by throwing.
int parse_and_run(Parser& parser, const ToolInfo& tool, Words words) {
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    parser.app.parse(std::move(words));
  } catch (const CLI::Success& answered) {
    const int exit_code = parser.app.exit(answered);
    flush_stdout();
    return exit_code;
  }
  if (!parser.run) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "a command is required",
                      "see " + tool.name + " --help");
  }
  return run_parser(parser, tool);
}

}  // namespace

int run_commands(const ToolInfo& tool, int argc, char** argv,
                 const std::vector<Command>& commands) {
  set_up_process();
  bool json = false;
  std::string name;
  try {
    name = tool.name;
    Words words(argv + std::min(argc, 1), argv + argc);
    json = asks_for_json(words);
    refuse_closed_stdout();
    const std::unique_ptr<Parser> parser = choose_parser(tool, commands, words);
    name = parser->app.get_name();
    return parse_and_run(*parser, tool, std::move(words));
  } catch (...) {
    Failure failure = describe_failure(std::current_exception());
    if (failure.code == "usage" && failure.hint.empty()) failure.hint = "see " + name + " --help";
    return fail(tool.name, std::move(failure), json);
  }
}

}  // namespace tools
