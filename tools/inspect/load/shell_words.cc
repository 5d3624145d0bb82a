#include "inspect/load/launch.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>

#include <ckpt/error.h>
#include <common/text.h>

namespace tools::inspect {
namespace {

using Words = std::vector<std::string>;

// Within a word, what the file does not tell: this, and a byte that says which reason it has.
constexpr char kMissing = '\x01';
constexpr size_t kReasonsMax = 255;

constexpr size_t kNestedMax = 4;  // commands in words of commands

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

bool ends_command(char c) { return std::string_view("\n;|&(){}").find(c) != std::string::npos; }

bool is_among(std::string_view word, std::string_view words) {
  return std::ranges::count(split(words, " "), word) > 0;
}

Words split_at_blanks(const std::string& text) {
  Words words;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_not_of(" \t\n", at);
    if (begin == text.npos) break;
    at = std::min(text.find_first_of(" \t\n", begin), text.size());
    words.push_back(text.substr(begin, at - begin));
  }
  return words;
}

// Reads a script from front to back; variables have the values of where it is.
class Script {
 public:
  Script(std::string_view text, Words& reasons) : text_(text), reasons_(reasons) {}

  std::vector<ShellCommand> read() {
    while (at_ < text_.size()) read_command();
    return std::move(commands_);
  }

 private:
  [[noreturn]] void refuse(const char* problem) const {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {},
                      "line " + std::to_string(line_) + ": " + problem,
                      "a shell script, the command line itself, or the arguments that a run "
                      "printed are read");
  }

  std::string missing(std::string reason) {
    auto found = std::ranges::find(reasons_, reason);
    if (found == reasons_.end() && reasons_.size() < kReasonsMax) {
      found = reasons_.insert(found, std::move(reason));
    }
    const size_t index = std::min<size_t>(found - reasons_.begin(), kReasonsMax - 1);
    return {kMissing, static_cast<char>(index + 1)};
  }

  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\n';
  }
  char take() {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }

  void skip_blanks() {
    while (at_ < text_.size()) {
      const bool is_joined = peek() == '\\' && (peek(1) == '\n' || peek(1) == '\r');
      if (is_joined) {
        while (at_ < text_.size() && take() != '\n') {
        }
      } else if (is_blank(peek())) {
        take();
      } else {
        break;
      }
    }
    if (at_ < text_.size() && peek() == '#') {
      while (at_ < text_.size() && peek() != '\n') take();
    }
  }

  // From behind an opening bracket to behind its closing one.
  void skip_brackets(char open, char close) {
    for (size_t depth = 1; depth > 0;) {
      if (at_ >= text_.size()) refuse("a bracket is not closed");
      const char c = take();
      depth += c == open ? 1 : 0;
      depth -= c == close ? 1 : 0;
    }
  }

  std::string take_name() {
    std::string name;
    while (at_ < text_.size() && is_name_char(peek())) name += take();
    return name;
  }

  Words value_of(const std::string& name) {
    const auto found = variables_.find(name);
    if (found != variables_.end()) return found->second;
    return {missing("$" + name + " is not set in the file")};
  }

  // ${...}, from behind the brace.
  Words take_braced() {
    const size_t begin = at_;
    const std::string name = take_name();
    const auto rest = [&] {
      const size_t from = at_;
      skip_brackets('{', '}');
      return std::string(text_.substr(from, at_ - 1 - from));
    }();
    const bool is_whole = rest == "[@]" || rest == "[*]" || rest.empty();
    if (!name.empty() && is_whole) return value_of(name);
    const bool has_default = rest.starts_with(":-") || rest.starts_with("-");
    if (!name.empty() && has_default) {
      if (variables_.contains(name)) return value_of(name);
      return {missing("$" + name + " is not set in the file, which has " + rest + " for that")};
    }
    return {
        missing("${" + std::string(text_.substr(begin, at_ - 1 - begin)) + "} is not evaluated")};
  }

  // What stands behind a '$'.
  Words take_expansion() {
    if (peek() == '{') {
      take();
      return take_braced();
    }
    if (peek() == '(') {
      take();
      skip_brackets('(', ')');
      return {missing("line " + std::to_string(line_) + ": $(...) is not evaluated")};
    }
    if (std::isalpha(static_cast<unsigned char>(peek())) != 0 || peek() == '_') {
      return value_of(take_name());
    }
    if (std::string_view("0123456789@*#?$!-").find(peek()) == std::string::npos) return {"$"};
    const char c = take();
    return {missing(std::string("$") + c + " is not known before the script runs")};
  }

  void take_single_quoted(std::string& word) {
    take();
    while (peek() != '\'') {
      if (at_ >= text_.size()) refuse("a quote is not closed");
      word += take();
    }
    take();
  }

  // Adds to the last of `words`; an array in quotes makes words of its elements.
  void take_double_quoted(Words& words) {
    take();
    while (true) {
      if (at_ >= text_.size()) refuse("a quote is not closed");
      const char c = take();
      if (c == '"') return;
      if (c == '\\' && peek() == '\n') {
        take();
      } else if (c == '\\' && std::string_view("$`\"\\").find(peek()) != std::string::npos) {
        words.back() += take();
      } else if (c == '`') {
        skip_brackets('\0', '`');
        words.back() += missing("`...` is not evaluated");
      } else if (c == '$') {
        const Words values = take_expansion();
        for (size_t i = 0; i < values.size(); ++i) {
          if (i > 0) words.emplace_back();
          words.back() += values[i];
        }
      } else {
        words.back() += c;
      }
    }
  }

  // An unquoted value: split at blanks; it joins what stands before and behind.
  void add_unquoted(Words& words, const Words& values) {
    bool is_first = true;
    for (const std::string& value : values) {
      for (const std::string& part : split_at_blanks(value)) {
        if (!is_first) words.emplace_back();
        words.back() += part;
        is_first = false;
      }
    }
  }

  // One word of the script, which may become none or many.
  Words take_word() {
    Words words(1);
    bool is_there = false;  // an empty quoted word is one, too
    while (at_ < text_.size() && !is_blank(peek()) && !ends_word()) {
      const char c = peek();
      if (c == '\'') {
        take_single_quoted(words.back());
        is_there = true;
      } else if (c == '"') {
        take_double_quoted(words);
        is_there = true;
      } else if (c == '\\') {
        take();
        if (peek() == '\n' || peek() == '\r') break;
        words.back() += take();
      } else if (c == '`') {
        take();
        skip_brackets('\0', '`');
        words.back() += missing("`...` is not evaluated");
      } else if (c == '$') {
        take();
        add_unquoted(words, take_expansion());
      } else {
        words.back() += take();
      }
    }
    const bool is_nothing = words.size() == 1 && words[0].empty();
    if (is_nothing && !is_there) words.clear();
    return words;
  }

  bool ends_word() const {
    const bool is_brace = peek() == '{' || peek() == '}';
    return (ends_command(peek()) && !is_brace) || peek() == '<' || peek() == '>';
  }

  // NAME=, NAME+=; where it stands, the name and whether it adds.
  std::optional<std::pair<std::string, bool>> take_assignment() {
    size_t end = at_;
    while (end < text_.size() && is_name_char(text_[end])) ++end;
    if (end == at_ || std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) return {};
    const bool adds = text_.substr(end, 2) == "+=";
    if (!adds && text_.substr(end, 1) != "=") return {};
    std::string name(text_.substr(at_, end - at_));
    at_ = end + (adds ? 2 : 1);
    return std::pair(std::move(name), adds);
  }

  Words take_array() {
    Words words;
    take();
    while (true) {
      skip_blanks();
      if (at_ >= text_.size()) refuse("an array is not closed");
      if (peek() == ')') break;
      if (ends_word() && !is_blank(peek())) {
        take();
        continue;
      }
      const Words more = take_word();
      words.insert(words.end(), more.begin(), more.end());
    }
    take();
    return words;
  }

  void assign(const std::string& name, bool adds) {
    const bool is_array = peek() == '(';
    Words value = is_array ? take_array() : take_word();
    if (!is_array) value = {ckpt::joined(value, " ")};  // one word, whatever blanks it has
    if (depth_ > 0) {
      if (value.empty()) value.emplace_back();
      value.back() +=
          missing("$" + name + " is set under a condition, in line " + std::to_string(line_));
    }
    Words& variable = variables_[name];
    if (!adds) variable.clear();
    if (adds && !is_array && !variable.empty()) {
      variable.back() += value.front();
    } else {
      variable.insert(variable.end(), value.begin(), value.end());
    }
  }

  void take_keyword(const std::string& word) {
    if (is_among(word, "if for while until case select")) ++depth_;
    if (is_among(word, "fi done esac") && depth_ > 0) --depth_;
  }

  // Redirections and documents in the script say nothing of words.
  void skip_redirection(Words& words) {
    const bool has_number =
        !words.empty() && at_ > 0 && std::isdigit(static_cast<unsigned char>(text_[at_ - 1])) != 0;
    if (has_number && words.back().size() == 1) words.pop_back();
    const bool is_document = text_.substr(at_, 2) == "<<" && text_.substr(at_, 3) != "<<<";
    while (peek() == '<' || peek() == '>' || peek() == '&' || peek() == '-') take();
    skip_blanks();
    const Words target = take_word();
    if (!is_document || target.empty()) return;
    const size_t end = text_.find("\n" + target[0], at_);
    while (at_ < std::min(end, text_.size())) take();
  }

  // Whether assignments may still come: nothing, or `export` and its like with their options.
  static bool declares(const Words& words) {
    if (words.empty()) return true;
    return is_among(words.front(), "export declare local readonly typeset") &&
           std::all_of(words.begin() + 1, words.end(),
                       [](const std::string& word) { return word.starts_with('-'); });
  }

  void read_command() {
    skip_blanks();
    const uint64_t line = line_;
    Words words;
    while (at_ < text_.size() && !ends_command_here()) {
      if (peek() == '<' || peek() == '>') {
        skip_redirection(words);
      } else if (const auto assigned = declares(words) ? take_assignment() : std::nullopt) {
        assign(assigned->first, assigned->second);
      } else {
        const Words more = take_word();
        words.insert(words.end(), more.begin(), more.end());
        if (words.size() == 1) take_keyword(words[0]);
        const bool leads =
            words.size() == 1 && is_among(words[0], "then else do { } ! if while elif exec");
        if (leads) words.clear();
      }
      skip_blanks();
    }
    if (at_ < text_.size()) take();
    if (!words.empty()) add(line, words);
  }

  bool ends_command_here() const {
    if (peek() == '{' || peek() == '}') return false;  // as words
    return ends_command(peek());
  }

  ShellWord told(const std::string& word) const {
    ShellWord found{word};
    const size_t at = word.find(kMissing);
    if (at == word.npos || at + 1 == word.size()) return found;
    const auto index = static_cast<unsigned char>(word[at + 1]);
    if (index - 1U < reasons_.size()) found.missing = reasons_[index - 1U];
    return found;
  }

  void add(uint64_t line, const Words& words) {
    ShellCommand& command = commands_.emplace_back(ShellCommand{line, {}});
    for (const std::string& word : words) command.words.push_back(told(word));
    for (const std::string& word : words) {
      const bool is_script = word.find_first_of(" \n") != word.npos &&
                             word.find(".py") != word.npos && nested_ < kNestedMax;
      if (!is_script) continue;
      Script inner(word, reasons_);
      inner.nested_ = nested_ + 1;
      for (ShellCommand& found : inner.read()) {
        found.line = line;
        commands_.push_back(std::move(found));
      }
    }
  }

  std::string_view text_;
  Words& reasons_;
  size_t at_ = 0;
  uint64_t line_ = 1;
  size_t depth_ = 0;   // of conditions and loops
  size_t nested_ = 0;  // of scripts in words
  std::map<std::string, Words> variables_;
  std::vector<ShellCommand> commands_;
};

}  // namespace

std::vector<ShellCommand> shell_commands(std::string_view script) {
  if (script.find(kMissing) != script.npos || script.find('\0') != script.npos) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {}, "it has bytes that no text has",
                      "a shell script, or a command line, is read");
  }
  Words reasons;
  return Script(script, reasons).read();
}

}  // namespace tools::inspect
