// Unix file name patterns as Python's fnmatch module reads them, written from its documented
// behaviour and a comparison with it (tests/golden/optim_layout/fnmatch.json):
//   glob := ( '*' | '?' | '[' ['!'] [']'] character* ']' | character )*
#include <ckpt/glob.h>

#include <algorithm>

#include "base/text.h"

namespace ckpt {
namespace {

using Characters = std::u32string;

// The code point of UTF-8 at `at`, which goes behind it. A byte that is not UTF-8 becomes a unit of
// its own (Python's surrogateescape), so that every name can be matched.
char32_t take_character(std::string_view text, size_t& at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  const Utf8Char next = lead < 0x80 ? Utf8Char{lead, 1} : first_utf8_char(text.substr(at));
  at += std::max(next.count_bytes, 1U);
  return next.count_bytes != 0 ? next.code_point : 0xDC00 + lead;
}

Characters decode(std::string_view text) {
  Characters characters;
  for (size_t i = 0; i < text.size();) characters.push_back(take_character(text, i));
  return characters;
}

using Token = Glob::Token;

bool accepts(const Token& token, char32_t character) {
  if (token.kind == Token::Kind::AnyOne) return true;
  if (token.kind == Token::Kind::Literal) return token.character == character;
  for (const auto& [low, high] : token.ranges) {
    if (low <= character && character <= high) return !token.negated;
  }
  return token.negated;
}

struct SetItem {
  char32_t low = 0, high = 0;
  bool is_range = false;
};

// A hyphen makes a range unless it comes first (also after a '!'), last or right after a range; a
// range that runs backwards vanishes.
std::vector<SetItem> read_items(const Characters& body) {
  std::vector<SetItem> items;
  for (size_t i = 0; i < body.size(); ++i) {
    const bool is_negation = i == 0 && body[0] == U'!';
    const bool is_range = i + 2 < body.size() && body[i + 1] == U'-' && !is_negation;
    if (!is_range) {
      items.push_back({body[i], body[i], false});
      continue;
    }
    if (body[i] <= body[i + 2]) items.push_back({body[i], body[i + 2], true});
    i += 2;
  }
  return items;
}

// The inside of brackets, as fnmatch.translate() reads it. What starts with '!' once backward
// ranges are gone is negated, even where the '!' began a range: "[b-a!-z]" is "neither - nor z".
Token read_set(const Characters& body) {
  Token token{.kind = Token::Kind::Set};
  for (const SetItem& item : read_items(body)) {
    const bool is_first = token.ranges.empty() && !token.negated;
    if (!is_first || item.low != U'!') {
      token.ranges.emplace_back(item.low, item.high);
      continue;
    }
    token.negated = true;
    if (!item.is_range) continue;
    token.ranges.emplace_back(U'-', U'-');
    token.ranges.emplace_back(item.high, item.high);
  }
  return token;
}

// Where the set that begins after the '[' at `open` ends; nullopt: the bracket is a literal.
std::optional<size_t> closing_bracket(const Characters& glob, size_t open) {
  size_t i = open + 1;
  if (i < glob.size() && glob[i] == U'!') ++i;
  if (i < glob.size() && glob[i] == U']') ++i;
  const size_t close = glob.find(U']', i);
  if (close == Characters::npos) return std::nullopt;
  return close;
}

std::vector<Token> tokenize(const Characters& glob) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < glob.size(); ++i) {
    if (glob[i] == U'*') {
      if (tokens.empty() || tokens.back().kind != Token::Kind::AnyRun) {
        tokens.push_back({.kind = Token::Kind::AnyRun});
      }
    } else if (glob[i] == U'?') {
      tokens.push_back({.kind = Token::Kind::AnyOne});
    } else if (const auto close = glob[i] == U'[' ? closing_bracket(glob, i) : std::nullopt) {
      tokens.push_back(read_set(glob.substr(i + 1, *close - i - 1)));
      i = *close;
    } else {
      tokens.push_back({.kind = Token::Kind::Literal, .character = glob[i]});
    }
  }
  return tokens;
}

// What a text must end with, where '*' and ASCII is all there is. UTF-8 has ASCII only as itself.
std::optional<std::string> suffix_of(const std::vector<Token>& tokens) {
  std::string suffix;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_run = tokens[i].kind == Token::Kind::AnyRun;
    const bool is_ascii = tokens[i].kind == Token::Kind::Literal && tokens[i].character < 0x80;
    if (i == 0 ? !is_run : !is_ascii) return std::nullopt;
    if (is_ascii) suffix += static_cast<char>(tokens[i].character);
  }
  if (tokens.empty()) return std::nullopt;
  return suffix;
}

}  // namespace

Glob::Glob(std::string_view glob) : tokens_(tokenize(decode(glob))), suffix_(suffix_of(tokens_)) {}

// Greedy: only the last '*' is ever extended, since any match of the tokens before it will do.
bool Glob::matches(std::string_view text) const {
  if (suffix_) return text.ends_with(*suffix_);
  size_t token = 0, at = 0;
  std::optional<std::pair<size_t, size_t>> last_run;  // token after it, where it ends for now
  while (at < text.size()) {
    size_t next = at;
    const char32_t character = take_character(text, next);
    if (token < tokens_.size() && tokens_[token].kind == Token::Kind::AnyRun) {
      last_run = {++token, at};
    } else if (token < tokens_.size() && accepts(tokens_[token], character)) {
      ++token, at = next;
    } else if (last_run) {
      token = last_run->first;
      take_character(text, last_run->second);
      at = last_run->second;
    } else {
      return false;
    }
  }
  while (token < tokens_.size() && tokens_[token].kind == Token::Kind::AnyRun) ++token;
  return token == tokens_.size();
}

}  // namespace ckpt
