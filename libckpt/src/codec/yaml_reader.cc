// Source: YAML 1.1 (2005) as PyYAML 6 writes it: emitter.py and resolver.py.
#include <ckpt/files_beside.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <vector>

#include <ckpt/error.h>

#include "base/text.h"
#include "codec/python_text.h"

namespace ckpt {
namespace {

using std::string_view;

constexpr size_t kYamlDepthMax = 64;
constexpr size_t kShownMax = 1000;  // letters of a scalar that an error shows
constexpr string_view kBlanks = " \t";

string_view trimmed(string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

struct YamlLine {
  size_t number = 0, indent = 0;
  string_view text;  // without indentation and blanks at its end; empty: a blank line
};

bool is_item(string_view text) { return text == "-" || text.starts_with("- "); }

// A comment is behind a blank.
string_view without_comment(string_view text) {
  const size_t comment = text.find(" #");
  return trimmed(text.substr(0, comment));
}

// Where the plain key of "key: value" or "key:" ends; nullopt: there is none.
std::optional<size_t> end_of_key(string_view text) {
  for (size_t at = text.find(':'); at != text.npos; at = text.find(':', at + 1)) {
    if (at + 1 == text.size() || text[at + 1] == ' ') return at;
  }
  return std::nullopt;
}

bool is_among(string_view word, std::initializer_list<string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

// PyYAML takes a number with an exponent and no dot for a text.
std::optional<double> float_in(string_view text) {
  const string_view unsigned_text = text.substr(text.starts_with('-') || text.starts_with('+'));
  if (is_among(unsigned_text, {".inf", ".Inf", ".INF"})) {
    return text.starts_with('-') ? -HUGE_VAL : HUGE_VAL;
  }
  if (is_among(text, {".nan", ".NaN", ".NAN"})) return std::numeric_limits<double>::quiet_NaN();
  const size_t dot = unsigned_text.find('.');
  const size_t exponent = unsigned_text.find_first_of("eE");
  if (dot == unsigned_text.npos || unsigned_text.find_first_not_of("0123456789.eE+-") != text.npos)
    return std::nullopt;
  if (exponent != unsigned_text.npos &&
      (exponent < dot || exponent + 2 >= unsigned_text.size() ||
       !is_among(unsigned_text.substr(exponent + 1, 1), {"+", "-"}))) {
    return std::nullopt;
  }
  return number_in<double>(text.substr(text.starts_with('+')));
}

class YamlReader {
 public:
  YamlReader(string_view text, const std::string& file) : file_(file) { split(text); }

  ValueTree run() {
    skip_blank();
    if (at_ < lines_.size() && lines_[at_].text == "---") ++at_;
    skip_blank();
    const NodeId root = at_ == lines_.size() ? tree_.none() : block(0);
    skip_blank();
    if (at_ < lines_.size() && lines_[at_].text == "...") ++at_;
    skip_blank();
    if (at_ < lines_.size()) refuse("does not belong to what is above it");
    tree_.set_root(root);
    return std::move(tree_);
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    const size_t number = lines_.empty() ? 0 : lines_[std::min(at_, lines_.size() - 1)].number;
    throw Error(ErrorCode::Unsupported, {.file = file_, .key = "line " + std::to_string(number)},
                problem + "; expected YAML in PyYAML's block style");
  }

  void split(string_view text) {
    size_t number = 0;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      YamlLine one{++number, std::min(line.find_first_not_of(' '), line.size()), {}};
      one.text = trimmed(line.substr(one.indent));
      lines_.push_back(one);
      at_ = lines_.size() - 1;
      if (!is_utf8(line) || line.find_first_of("\r\t") != line.npos) {
        refuse("holds a tab, a carriage return or what is not UTF-8");
      }
    }
    at_ = 0;
  }

  void skip_blank() {
    while (at_ < lines_.size() && (lines_[at_].text.empty() || lines_[at_].text[0] == '#')) ++at_;
  }

  bool has_line_at(size_t indent) {
    skip_blank();
    return at_ < lines_.size() && lines_[at_].indent == indent &&
           !is_among(lines_[at_].text, {"---", "..."});
  }
  bool has_line_below(size_t indent) {
    skip_blank();
    return at_ < lines_.size() && lines_[at_].indent > indent;
  }

  NodeId block(size_t depth) {
    if (depth > kYamlDepthMax) refuse("is nested too deeply");
    const YamlLine& line = lines_[at_];
    if (is_item(line.text)) return sequence(line.indent, depth);
    const bool is_quoted = line.text[0] == '"' || line.text[0] == '\'';
    if (is_quoted ? quoted_key_ends(line.text) : end_of_key(line.text).has_value()) {
      return mapping(line.indent, depth);
    }
    return value(line.text, line.indent == 0 ? 0 : line.indent - 1, depth);
  }

  NodeId sequence(size_t indent, size_t depth) {
    const NodeId list = tree_.list();
    while (has_line_at(indent) && is_item(lines_[at_].text)) {
      YamlLine& line = lines_[at_];
      const string_view rest = trimmed(line.text.substr(1));
      line.indent += line.text.size() - rest.size();
      line.text = rest;
      const bool is_compact = !rest.empty() && (is_item(rest) || starts_mapping(rest));
      tree_.append(list, is_compact ? block(depth + 1) : value(rest, indent, depth + 1));
    }
    return list;
  }

  bool starts_mapping(string_view text) const {
    if (text[0] == '"' || text[0] == '\'') return quoted_key_ends(text);
    return string_view("&*!").find(text[0]) == text.npos && end_of_key(text).has_value();
  }

  // Keys are on one line.
  static bool quoted_key_ends(string_view text) {
    for (size_t i = 1; i < text.size(); ++i) {
      if (text[0] == '"' && text[i] == '\\') {
        ++i;
      } else if (text[i] == text[0]) {
        if (text[0] == '\'' && text.substr(i + 1).starts_with('\'')) {
          ++i;
        } else {
          return i + 1 < text.size() && text[i + 1] == ':';
        }
      }
    }
    return false;
  }

  NodeId mapping(size_t indent, size_t depth) {
    const NodeId dict = tree_.dict();
    TextSet seen;
    while (has_line_at(indent) && !is_item(lines_[at_].text)) {
      string_view rest = lines_[at_].text;
      const string_view whole = rest;
      const NodeId key = key_of(rest);
      const std::string text(whole.substr(0, whole.size() - rest.size()));
      if (!seen.insert(text).second) refuse("has '" + escaped(text) + "' twice");
      tree_.set_item(dict, key, value(trimmed(rest), indent, depth + 1, true));
    }
    return dict;
  }

  // Takes it from the line, and the colon behind it.
  NodeId key_of(string_view& rest) {
    if (rest[0] == '"' || rest[0] == '\'') {
      if (!quoted_key_ends(rest)) refuse("has no key");
      const std::string text = quoted(rest);
      rest.remove_prefix(1);
      return tree_.str(text);
    }
    const auto end = end_of_key(rest);
    if (!end) refuse("has no key");
    const string_view text = trimmed(rest.substr(0, *end));
    rest.remove_prefix(*end + 1);
    return plain(text);
  }

  // What stands behind a key or a dash, or alone; what belongs to it is below `indent`.
  NodeId value(string_view rest, size_t indent, size_t depth, bool of_key = false) {
    if (rest.starts_with('#')) rest = {};
    std::string anchor, tag;
    while (!rest.empty() && (rest[0] == '&' || rest[0] == '!')) {
      const size_t end = std::min(rest.find(' '), rest.size());
      std::string& name = rest[0] == '&' ? anchor : tag;
      if (!name.empty() || end < 2) refuse("has two anchors or tags, or one without a name");
      name = rest.substr(rest[0] == '&' ? 1 : 0, end);
      rest = trimmed(rest.substr(end));
    }
    const NodeId plain_value = untagged(rest, indent, depth, of_key);
    if (!anchor.empty()) anchors_[anchor] = plain_value;
    if (tag.empty()) return plain_value;
    const NodeId tagged = tree_.dict();
    tree_.put(tagged, "!", tree_.str(tag));
    tree_.put(tagged, "=", plain_value);
    if (!anchor.empty()) anchors_[anchor] = tagged;
    return tagged;
  }

  NodeId untagged(string_view rest, size_t indent, size_t depth, bool of_key) {
    if (rest.empty()) {
      ++at_;
      if (has_line_below(indent)) return block(depth);
      const bool is_list = of_key && has_line_at(indent) && is_item(lines_[at_].text);
      return is_list ? sequence(indent, depth) : tree_.none();
    }
    if (rest[0] == '*') return alias(without_comment(rest.substr(1)));
    if (rest[0] == '"' || rest[0] == '\'') {
      const std::string text = quoted(rest);
      if (!without_comment(" " + std::string(rest)).empty()) refuse("has a text behind its quote");
      ++at_;
      return tree_.str(text);
    }
    return plain(folded(rest, indent));
  }

  NodeId alias(string_view name) {
    const auto found = anchors_.find(name);
    if (found == anchors_.end()) refuse("refers to what is not above it");
    ++at_;
    return found->second;
  }

  // A plain scalar with the lines below that continue it.
  std::string folded(string_view first, size_t indent) {
    std::string text(without_comment(first));
    check_plain(text);
    bool has_comment = text.size() != first.size();
    for (++at_; at_ < lines_.size(); ++at_) {
      size_t next = at_;
      while (next < lines_.size() && lines_[next].text.empty()) ++next;
      if (next == lines_.size() || lines_[next].indent <= indent) break;
      if (has_comment) refuse("continues a value behind a comment");
      const string_view more = without_comment(lines_[next].text);
      if (lines_[next].text[0] == '#') break;
      if (end_of_key(more)) refuse("is deeper than what it belongs to");
      text += next == at_ ? " " : std::string(next - at_, '\n');
      text += more;
      has_comment = more.size() != lines_[next].text.size();
      at_ = next;
    }
    return text;
  }

  void check_plain(string_view text) const {
    if (text == "{}" || text == "[]") return;
    const bool is_other = string_view("{[}],|>@`%#&*!\"'").find(text[0]) != text.npos ||
                          is_among(text.substr(0, 2), {"? ", "- ", ": "}) || text == "?";
    if (is_other || end_of_key(text)) {
      refuse("holds '" + escaped(text.substr(0, kShownMax)) + "', which is not read");
    }
  }

  NodeId plain(string_view text) {
    check_plain(text);
    if (text == "{}") return tree_.dict();
    if (text == "[]") return tree_.list();
    if (is_among(text, {"~", "null", "Null", "NULL"})) return tree_.none();
    for (const bool truth : {false, true}) {
      const auto words = truth ? std::array{"true", "yes", "on"} : std::array{"false", "no", "off"};
      for (const string_view word : words) {
        if (is_word(text, word)) return tree_.boolean(truth);
      }
    }
    return number_or_text(text);
  }

  // As it is, Capitalised or in CAPITALS.
  static bool is_word(string_view text, string_view lower) {
    const auto upper = [](char c) { return static_cast<char>(c - 'a' + 'A'); };
    std::string capital(lower), all(lower);
    capital[0] = upper(capital[0]);
    std::ranges::transform(all, all.begin(), upper);
    return is_among(text, {lower, capital, all});
  }

  NodeId number_or_text(string_view text) {
    const string_view digits = text.substr(text.starts_with('-') || text.starts_with('+'));
    const bool is_number = !digits.empty() && digits.find_first_not_of("0123456789") == text.npos;
    if (is_number && digits.size() > 1 && digits[0] == '0') refuse("has a number in base 8");
    if (is_number) {
      const auto number = number_in<int64_t>(text.substr(text.starts_with('+')));
      return number ? tree_.integer(*number) : tree_.big_integer(std::string(text));
    }
    const bool may_be_other = !digits.empty() && digits[0] >= '0' && digits[0] <= '9' &&
                              digits.find_first_not_of("0123456789abcdefABCDEFxX_:.") == text.npos;
    const bool is_other = digits.starts_with("0x") || digits.starts_with("0b") ||
                          digits.find_first_of("_:") != text.npos;
    if (may_be_other && is_other) refuse("has a number in a form that is not read");
    const auto real = float_in(text);
    return real ? tree_.real(*real) : tree_.str(text);
  }

  // --- texts in quotes ---

  // Takes it from the line, or from more lines: the cursor stays on the last.
  std::string quoted(string_view& rest) {
    const char quote = rest[0];
    std::string text;
    rest.remove_prefix(1);
    for (;;) {
      bool is_joined = false;
      while (!rest.empty()) {
        const char c = rest[0];
        rest.remove_prefix(1);
        if (c == quote && !(quote == '\'' && rest.starts_with('\''))) return text;
        if (quote == '"' && c == '\\') {
          is_joined = rest.empty();
          if (!is_joined) append_escape(rest, text);
        } else {
          if (c == quote) rest.remove_prefix(1);  // two for one
          text += c;
        }
      }
      size_t blank = 0;
      for (++at_; at_ < lines_.size() && lines_[at_].text.empty(); ++at_) ++blank;
      if (at_ == lines_.size()) refuse("has no end of its quote");
      if (!is_joined) text += blank == 0 ? " " : std::string(blank, '\n');
      rest = lines_[at_].text;
    }
  }

  void append_escape(string_view& rest, std::string& text) const {
    constexpr string_view kLetters = "0abtnvfre \"/\\";
    constexpr string_view kMeanings("\0\a\b\t\n\v\f\r\x1B \"/\\", 13);
    const char c = rest[0];
    rest.remove_prefix(1);
    if (const size_t at = kLetters.find(c); at != kLetters.npos) {
      text += kMeanings[at];
      return;
    }
    if (const size_t at = string_view("N_LP").find(c); at != string_view::npos) {
      constexpr std::array kMore = {"\xC2\x85", "\xC2\xA0", "\xE2\x80\xA8", "\xE2\x80\xA9"};
      text += kMore[at];
      return;
    }
    const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const auto point = number_in<uint32_t>(rest.substr(0, count), 16);
    if (count == 0 || rest.size() < count || !point) refuse("has an escape that is not known");
    rest.remove_prefix(count);
    const bool is_surrogate = *point >= 0xD800 && *point < 0xE000;
    if (*point > 0x10FFFF || is_surrogate) refuse("has no valid character");
    pickle::append_utf8(text, *point);
  }

  const std::string& file_;
  std::vector<YamlLine> lines_;
  size_t at_ = 0;
  ValueTree tree_;
  TextMap<NodeId> anchors_;
};

}  // namespace

ValueTree read_yaml(string_view text, const std::string& file) {
  return YamlReader(text, file).run();
}

}  // namespace ckpt
