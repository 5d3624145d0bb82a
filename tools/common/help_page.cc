// The page that --help prints, in our own words: CLI11's names its C++ types.
#include "common/help_page.h"

#include <common/console.h>
#include <common/text.h>

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>

namespace tools {
namespace {

constexpr size_t kWidthMax = 80;
constexpr size_t kNamesMax = 26;  // a longer name has a line of its own

size_t page_width() {
  return std::min(kWidthMax, Screen::of(STDOUT_FILENO).width.value_or(kWidthMax));
}

// "-o, --output PATH", "--dry-run", "SOURCE"; what a value looks like is the option's text.
std::string name_of(const CLI::Option& option) {
  std::string name;
  for (const std::string& letter : option.get_snames())
    name += (name.empty() ? "-" : ", -") + letter;
  for (const std::string& word : option.get_lnames()) name += (name.empty() ? "--" : ", --") + word;
  if (option.get_positional()) name = option.get_single_name();
  const std::string& value = option.get_option_text();
  const bool has_value = value.find_first_not_of(' ') != std::string::npos;
  if (!has_value) return name;
  return name + (value.starts_with("...") ? "" : " ") + value;
}

std::vector<HelpRow> rows_of(const std::vector<const CLI::Option*>& options) {
  std::vector<HelpRow> rows;
  for (const CLI::Option* option : options) {
    const bool is_argument = option->get_positional() && option->get_required();
    rows.push_back(
        {name_of(*option), option->get_description() + (is_argument ? " (required)" : "")});
  }
  return rows;
}

// A line is not broken at blanks between quotes.
std::vector<std::string> shell_words(const std::string& command) {
  std::vector<std::string> words(1);
  bool is_quoted = false;
  for (const char character : command) {
    if (character == '\'') is_quoted = !is_quoted;
    if (character == ' ' && !is_quoted) {
      words.emplace_back();
    } else {
      words.back() += character;
    }
  }
  return words;
}

// A line for each command; those too long continue after a backslash.
std::string examples_text(const std::vector<HelpRow>& examples) {
  std::string text;
  for (const HelpRow& example : examples) {
    std::string line = " ";
    for (const std::string& word : shell_words(example.name)) {
      if (line.size() > 6 && line.size() + 1 + word.size() + 2 > page_width()) {
        text += line + " \\\n";
        line = "     ";
      }
      line += ' ' + word;
    }
    text += line + '\n';
  }
  return text;
}

// "--to torch|torch_dist|...", which may be longer than a narrow terminal is wide.
std::string name_text(const std::string& name) {
  const size_t width = page_width() - 2;
  const size_t bar = name.rfind('|', width - 1);
  if (name.size() <= width || bar == std::string::npos) return "  " + name;
  return "  " + name.substr(0, bar + 1) + "\n      " + name.substr(bar + 1);
}

// A row for each, the descriptions in one column.
std::string rows_text(const std::vector<HelpRow>& rows) {
  size_t width = 0;
  for (const HelpRow& row : rows) {
    if (row.name.size() <= kNamesMax) width = std::max(width, row.name.size());
  }
  std::string section;
  for (const HelpRow& row : rows) {
    const bool has_own_line = row.name.size() > width;
    const std::string padding(has_own_line ? 0 : width - row.name.size(), ' ');
    const std::string text(2 + width + 2, ' ');
    const std::string description =
        wrapped(text + row.description, page_width(), text.size()).substr(text.size());
    section +=
        name_text(row.name) + (has_own_line ? '\n' + text : padding + "  ") + description + '\n';
  }
  return section;
}

// The groups of options in one, which has those that most need, in their order.
std::vector<HelpSection> most_used_sections_of(const CLI::App& app, const HelpText& text) {
  std::vector<const CLI::Option*> most_used;
  for (const std::string& name : text.most_used) most_used.push_back(app.get_option("--" + name));
  std::vector<HelpSection> sections = sections_of(app, text);
  const std::vector<std::string> groups = app.get_groups();
  const auto is_of_options = [&](const HelpSection& section) {
    return std::ranges::find(groups, section.title) != groups.end();
  };
  const auto first = std::ranges::find_if(sections, is_of_options);
  *first = {"Most used options", rows_of(most_used)};
  sections.erase(std::remove_if(first + 1, sections.end(), is_of_options), sections.end());
  return sections;
}

class HelpPage : public CLI::FormatterBase {
 public:
  explicit HelpPage(HelpText text) : text_(std::move(text)) {}

  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode mode) const override {
    std::string page = wrapped(app->get_description(), page_width(), 0) + "\n\n";
    for (const std::string& usage : usage_of(*app, text_.has_commands)) {
      const std::string before = page.ends_with("\n\n") ? "Usage: " : "       ";
      page += wrapped(before + usage, page_width(), 4) + '\n';
    }
    const bool is_short = !text_.most_used.empty() && mode != CLI::AppFormatMode::All;
    for (const HelpSection& section :
         is_short ? most_used_sections_of(*app, text_) : sections_of(*app, text_)) {
      const bool has_examples = section.rows.front().description.empty();
      page += '\n' + section.title + ":\n" +
              (has_examples ? examples_text(section.rows) : rows_text(section.rows));
    }
    return page;
  }

 private:
  HelpText text_;
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> make_help_page(HelpText text) {
  return std::make_shared<HelpPage>(std::move(text));
}

bool is_listed(const CLI::Option& option) { return !option.get_group().empty(); }

std::vector<std::string> usage_of(const CLI::App& app, bool has_commands) {
  const std::string commands = app.get_name() + " COMMAND ...";
  const bool has_arguments = std::ranges::any_of(
      app.get_options(), [](const CLI::Option* option) { return option->get_positional(); });
  if (has_commands && !has_arguments) return {commands};
  std::string usage = app.get_name();
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = name_of(*option);
    usage += option->get_required() ? ' ' + name : " [" + name + ']';
  }
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional() && option->get_required()) usage += ' ' + name_of(*option);
  }
  std::vector<std::string> lines = {usage + " [OPTIONS]"};
  if (has_commands) lines.push_back(commands);
  return lines;
}

std::vector<HelpSection> sections_of(const CLI::App& app, const HelpText& text) {
  std::vector<HelpSection> sections;
  const auto add = [&](const std::string& title, const auto& belongs) {
    const auto rows = rows_of(app.get_options(belongs));
    if (!rows.empty()) sections.push_back({title, rows});
  };
  const auto is_required = [](const CLI::Option* option) {
    return !option->get_positional() && option->get_required();
  };
  add("Arguments", [](const CLI::Option* option) { return option->get_positional(); });
  add("Required options", is_required);
  for (const std::string& group : app.get_groups()) {
    add(group, [&](const CLI::Option* option) {
      return option->get_group() == group && is_listed(*option) && !option->get_positional() &&
             !is_required(option);
    });
  }
  sections.insert(sections.end(), text.ending.begin(), text.ending.end());
  return sections;
}

}  // namespace tools
