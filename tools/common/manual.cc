// Manual pages and completions, out of what --help is made from.
#include "common/manual.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <ckpt/error.h>
#include <common/help_page.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

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

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
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

}  // namespace tools
