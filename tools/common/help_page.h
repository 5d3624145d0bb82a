#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace tools {

struct HelpRow {
  std::string name;
  std::string description = {};  // of an example, which is a command line: none
};
struct HelpSection {
  std::string title;
  std::vector<HelpRow> rows;
};

// What a page says beside its parser's arguments and options.
struct HelpText {
  bool has_commands = false;
  std::vector<std::string> most_used = {};  // long names without dashes; empty: all options
  std::vector<HelpSection> ending = {};
};

// The page that --help prints: at most 80 columns, and no wider than the terminal. Arguments,
// required options, the other options by group, the ending. Where there are most used options, the
// others are left to --help-all.
std::shared_ptr<CLI::FormatterBase> make_help_page(HelpText text);

struct ManualPage {
  const CLI::App* app;
  const HelpText* text;
};

// What to do instead, where another command has the option; empty: nothing is known.
std::string hint_of_option(const std::string& command, const std::string& option);

// Writes what --help says as files under `folder`, which is like /usr: a manual page for each of
// `pages`, of which the program's is the first, and completions for bash and zsh, where `commands`
// are the words that may come first. Throws IoFailure.
void write_manual(const std::string& folder, const std::vector<ManualPage>& pages,
                  const std::vector<std::string>& commands);

}  // namespace tools
