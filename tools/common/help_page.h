#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class FormatterBase;
}

namespace tools {

// What a page says beside its parser's arguments and options.
struct HelpText {
  bool has_commands = false;
  std::string ending;  // paragraphs, made below
};

// The page that --help prints: at most 80 columns, and no wider than the terminal. Arguments,
// required options, the other options by group, the ending.
std::shared_ptr<CLI::FormatterBase> make_help_page(HelpText text);

struct HelpRow {
  std::string name, description;
};
// "TITLE:" and a row for each, the descriptions in one column.
std::string help_section(const std::string& title, const std::vector<HelpRow>& rows);

// "Examples:" and a line for each command; those too long continue after a backslash.
std::string examples_section(const std::vector<std::string>& examples);

}  // namespace tools
