#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
class Option;
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

// What the page is made from: "PROGRAM PATH [OPTIONS]", and the sections after it.
std::vector<std::string> usage_of(const CLI::App& app, bool has_commands);
std::vector<HelpSection> sections_of(const CLI::App& app, const HelpText& text);  // --help-all's

bool is_listed(const CLI::Option& option);  // in --help

}  // namespace tools
