// The page that --help prints, in our own words: CLI11's names its C++ types.
#include "common/help_page.h"

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <ckpt/error.h>

#include "common/console.h"
#include "common/text.h"

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

// In --help.
bool is_listed(const CLI::Option& option) { return !option.get_group().empty(); }

// "PROGRAM PATH [OPTIONS]"
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

// --help-all's.
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

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

std::string with_dashes(std::string name, char dash = '-') {
  std::ranges::replace(name, ' ', dash);
  if (dash == '_') std::ranges::replace(name, '-', dash);
  return name;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw ckpt::Error(ckpt::ErrorCode::IoFailure, {path.string()}, "cannot write");
}

// --- manual pages ---

std::string roff(std::string text) {
  replace_all(text, "\\", "\\e");
  replace_all(text, "-", "\\-");
  replace_all(text, "'", "\\(aq");
  return text.starts_with('.') ? "\\&" + text : text;
}

std::string roff_of(const HelpSection& section) {
  std::string title = section.title.substr(0, section.title.find(" ("));
  std::ranges::transform(title, title.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string page = ".SH " + roff(title) + '\n';
  const bool has_examples = section.rows.front().description.empty();
  if (has_examples) page += ".EX\n";
  for (const HelpRow& row : section.rows) {
    page += has_examples ? roff(row.name) + '\n'
                         : ".TP\n\\fB" + roff(row.name) + "\\fR\n" + roff(row.description) + '\n';
  }
  return has_examples ? page + ".EE\n" : page;
}

std::string roff_of(const ManualPage& page, const std::vector<ManualPage>& all) {
  const std::string name = with_dashes(page.app->get_name());
  std::string title = name;
  std::ranges::transform(title, title.begin(), [](unsigned char c) { return std::toupper(c); });
  const std::string description = roff(page.app->get_description());
  std::string text = ".TH " + title + " 1 \"\" \"Shardwise " SHARDWISE_VERSION "\"\n.SH NAME\n" +
                     roff(name) + " \\- " + description + "\n.SH SYNOPSIS\n.nf\n";
  for (const std::string& usage : usage_of(*page.app, page.text->has_commands)) {
    text += roff(usage) + '\n';
  }
  text += ".fi\n.SH DESCRIPTION\n" + description + '\n';
  for (const HelpSection& section : sections_of(*page.app, *page.text)) text += roff_of(section);
  std::string others;
  for (const ManualPage& other : all) {
    if (other.app == page.app) continue;
    others += (others.empty() ? ".SH SEE ALSO\n" : ",\n");
    others += "\\fB" + roff(with_dashes(other.app->get_name())) + "\\fR(1)";
  }
  return text + others + (others.empty() ? "" : "\n");
}

// --- completions ---

// The word after the program's name that leads to a page; empty: that of the program.
std::string command_of(const CLI::App& app) {
  const std::string& name = app.get_name();
  return name.find(' ') == std::string::npos ? "" : name.substr(name.find(' ') + 1);
}

std::vector<std::string> words_of(const CLI::Option& option) {
  std::vector<std::string> words;
  for (const std::string& name : option.get_snames()) words.push_back('-' + name);
  for (const std::string& name : option.get_lnames()) words.push_back("--" + name);
  return words;
}

// Of "auto|FAMILY|FILE" what can be typed as it is: "auto".
std::vector<std::string> choices_of(const CLI::Option& option) {
  std::vector<std::string> choices;
  const std::string& text = option.get_option_text();
  if (text.find('|') == std::string::npos) return choices;
  for (const std::string& word : CLI::detail::split(text, '|')) {
    const bool is_word = word.find_first_of(" ,.[]=") == std::string::npos;
    const bool is_placeholder = std::ranges::any_of(word, [](char c) { return std::isupper(c); });
    if (is_word && !is_placeholder) choices.push_back(word);
  }
  return choices;
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* option) { return is_listed(*option) && !option->get_positional(); });
}

bool takes_a_value(const CLI::Option& option) { return option.get_items_expected_min() > 0; }

std::string bash_completion(const std::vector<ManualPage>& pages,
                            const std::vector<std::string>& commands) {
  const std::string& program = pages.front().app->get_name();
  std::string options, values;
  for (const ManualPage& page : pages) {
    std::vector<std::string> words;
    for (const CLI::Option* option : options_of(*page.app)) {
      for (const std::string& word : words_of(*option)) {
        words.push_back(word);
        const std::string choices = joined(choices_of(*option), " ");
        if (choices.empty()) continue;
        values += "    '" + command_of(*page.app) + ' ' + word + "') words='" + choices + "' ;;\n";
      }
    }
    options += "    '" + command_of(*page.app) + "') options='" + joined(words, " ") + "' ;;\n";
  }
  std::string text = R"bash(# Completions of PROGRAM for bash, made from its --help.
_FUNCTION() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  local command= options= words= each
  for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case " COMMANDS " in *" $each "*) command=$each; break ;; esac
  done
  case "$command" in
OPTIONS  esac
  case "$command $before" in
VALUES  esac
  [ -n "$words" ] || case "$word" in
    -*) words=$options ;;
    *) [ "$COMP_CWORD" -gt 1 ] || words='COMMANDS' ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _FUNCTION PROGRAM
)bash";
  replace_all(text, "PROGRAM", program);
  replace_all(text, "FUNCTION", with_dashes(program, '_'));
  replace_all(text, "COMMANDS", joined(commands, " "));
  replace_all(text, "OPTIONS", options);
  replace_all(text, "VALUES", values);
  return text;
}

std::string zsh_quoted(std::string text) {
  for (const char* special : {"\\", "[", "]", ":"}) {
    replace_all(text, special, std::string("\\") + special);
  }
  replace_all(text, "'", "'\\''");
  return text;
}

// "'(-j --threads)'{-j,--threads}'[Threads]:N:( )'", as _arguments reads it.
std::string zsh_option(const CLI::Option& option) {
  const std::vector<std::string> words = words_of(option);
  const bool repeats = option.get_items_expected_max() > 1;
  std::string text = repeats ? "'*'" : "'(" + joined(words, " ") + ")'";
  text += words.size() > 1 ? '{' + joined(words, ",") + '}' : words.front();
  text += "'[" + zsh_quoted(option.get_description()) + ']';
  if (takes_a_value(option)) {
    const std::string choices = joined(choices_of(option), " ");
    text += ':' + zsh_quoted(option.get_option_text()) + ':' +
            (choices.empty() ? "_files" : '(' + choices + ')');
  }
  return text + "'";
}

std::string zsh_completion(const std::vector<ManualPage>& pages,
                           const std::vector<std::string>& commands) {
  std::string options;
  for (const ManualPage& page : pages) {
    options += "  ('" + command_of(*page.app) + "') options=(\n";
    for (const CLI::Option* option : options_of(*page.app)) {
      options += "    " + zsh_option(*option) + '\n';
    }
    options += "  ) ;;\n";
  }
  std::string text = R"zsh(#compdef PROGRAM
# Completions of PROGRAM for zsh, made from its --help.
local command= each
local -a options
for each in "${(@)words[2,CURRENT-1]}"; do
  if [[ " COMMANDS " == *" $each "* ]]; then command=$each; break; fi
done
case $command in
OPTIONSesac
if [[ CURRENT -eq 2 && $words[2] != -* ]]; then
  compadd -- COMMANDS
  _files
else
  _arguments -S : $options '*:path:_files'
fi
)zsh";
  replace_all(text, "PROGRAM", pages.front().app->get_name());
  replace_all(text, "COMMANDS", joined(commands, " "));
  replace_all(text, "OPTIONS", options);
  return text;
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> make_help_page(HelpText text) {
  return std::make_shared<HelpPage>(std::move(text));
}

void write_manual(const std::string& folder, const std::vector<ManualPage>& pages,
                  const std::vector<std::string>& commands) {
  const std::filesystem::path share = std::filesystem::path(folder) / "share";
  for (const ManualPage& page : pages) {
    write_file(share / "man/man1" / (with_dashes(page.app->get_name()) + ".1"),
               roff_of(page, pages));
  }
  const std::string& program = pages.front().app->get_name();
  write_file(share / "bash-completion/completions" / program, bash_completion(pages, commands));
  write_file(share / "zsh/site-functions" / ('_' + program), zsh_completion(pages, commands));
}

std::string hint_of_option(const std::string& command, const std::string& option) {
  if (command == "reshard" && option == "--to") {
    return "ckpt-convert has --to, and takes the same sizes";
  }
  if (command == "ckpt-inspect diff" && option == "--iteration") {
    return "name the folder of an iteration: ckpt-inspect diff ROOT/iter_0000003 OTHER";
  }
  return {};
}

}  // namespace tools
