// Keys as people type them, matched with keys as they are stored; and the key that was meant where
// there is none.
#include <ckpt/key_pattern.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/plain_target.h>
#include <ckpt/printed.h>

namespace ckpt {
namespace {

bool is_separator(char c) { return c == '.' || c == '/'; }

bool is_plain(std::string_view name) {
  return std::ranges::all_of(
      name, [](char c) { return c > ' ' && c < '\x7F' && c != '\'' && c != '"' && c != '\\'; });
}

// Python's globs have [!..] alone; shells have [^..], too.
std::string with_python_sets(std::string glob) {
  for (size_t at = 0; (at = glob.find("[^", at)) != glob.npos; ++at) glob[at + 1] = '!';
  return glob;
}

// The character at `at`; past the first of two where "~1" or "~0" is one.
char folded_character(std::string_view key, size_t& at) {
  const char next = at + 1 < key.size() ? key[at + 1] : '\0';
  if (key[at] == '~' && (next == '0' || next == '1')) return key[++at] == '1' ? '/' : '~';
  return is_separator(key[at]) ? '/' : key[at];
}

// Where `typed` ends as the front of `key`, separators and an '@' where a step begins aside.
std::optional<size_t> end_of_front(std::string_view key, std::string_view typed) {
  size_t at = 0, in_typed = 0;
  const auto skip_mark = [](std::string_view text, size_t& in_text) {
    const bool is_step = in_text == 0 || is_separator(text[in_text - 1]);
    if (is_step && in_text < text.size() && text[in_text] == '@') ++in_text;
  };
  while (true) {
    skip_mark(key, at);
    skip_mark(typed, in_typed);
    if (in_typed >= typed.size()) return at;
    if (at >= key.size()) return std::nullopt;
    if (folded_character(key, at) != folded_character(typed, in_typed)) return std::nullopt;
    ++at, ++in_typed;
  }
}

bool ends_at_step(std::string_view key, std::string_view front, size_t end) {
  return end == key.size() || front.empty() || is_separator(front.back()) || is_separator(key[end]);
}

std::string unescaped_step(std::string_view step) {
  std::string text;
  for (size_t at = 0; at < step.size(); ++at) {
    text += is_separator(step[at]) ? step[at] : folded_character(step, at);
  }
  return text;
}

// "/a.b/c" is a.b, c; "a.b" is a, b.
std::vector<std::string> steps_of(const std::string& to) {
  const bool is_pointer = to.starts_with('/');
  std::vector<std::string> steps;
  for (size_t start = is_pointer ? 1 : 0; start < to.size();) {
    const size_t end = std::min(to.find(is_pointer ? '/' : '.', start), to.size());
    const std::string step = to.substr(start, end - start);
    if (!step.empty()) steps.push_back(is_pointer ? unescaped_step(step) : step);
    start = end + 1;
  }
  return steps;
}

// As the front of a new key: a pointer's steps with dots between them.
std::string front_text(const std::string& to, const std::vector<std::string>& steps) {
  if (!to.starts_with('/')) return to;
  const std::string text = joined(steps, ".");
  return to.ends_with('/') && !text.empty() ? text + "." : text;
}

constexpr size_t kKeysMax = 100'000;
constexpr size_t kTypedBytesMax = 256;
constexpr size_t kDifferencesMax = 8;
constexpr size_t kHeldBytesMin = 3;  // less is in every key

// What one word has to have changed, inserted or left out to be the other; `limit` + 1 where that
// is more than `limit`.
size_t difference_count(std::string_view a, std::string_view b, size_t limit) {
  const auto [a_front, b_front] = std::ranges::mismatch(a, b);
  a.remove_prefix(static_cast<size_t>(a_front - a.begin()));
  b.remove_prefix(static_cast<size_t>(b_front - b.begin()));
  const size_t shorter = std::min(a.size(), b.size());
  if (std::max(a.size(), b.size()) - shorter > limit) return limit + 1;
  std::vector<size_t> row(b.size() + 1);  // of one front of a, and each front of b
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    size_t least = ++row[0];
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
      least = std::min(least, row[j + 1]);
    }
    if (least > limit) return limit + 1;
  }
  return row.back();
}

// Whether the last steps of two keys are more than mistyped, as "nope" for "fp8".
bool is_other_word(std::string_view a, std::string_view b) {
  a.remove_prefix(a.find_last_of("/:") + 1);
  b.remove_prefix(b.find_last_of("/:") + 1);
  const size_t limit = std::max(a.size(), b.size()) / 2;
  return difference_count(a, b, limit) > limit;
}

std::string qualified(const KeyName& name) {
  return (name.file.empty() ? "" : std::string(name.file) + ":") + std::string(name.key);
}

std::string printed(const KeyName& name) {
  const std::string key = printed_key(name.key);
  return name.file.empty() ? key : escaped(name.file) + ":" + key;
}

}  // namespace

std::string printed_key(std::string_view key) {
  if (key.empty()) return "(root)";
  return key.front() == ' ' ? "\\x20" + escaped(key.substr(1)) : escaped(key);
}

std::string folded_key(std::string_view key) {
  std::string folded;
  folded.reserve(key.size());
  bool is_front = true, is_step = true;  // where a separator, where an '@' is left out
  for (size_t at = 0; at < key.size(); ++at) {
    const bool is_left_out = (is_front && is_separator(key[at])) || (is_step && key[at] == '@');
    is_step = is_left_out && key[at] != '@';
    is_front = false;
    if (is_left_out) continue;
    folded += folded_character(key, at);
    is_front = folded.back() == ':';
    is_step = is_front || folded.back() == '/';
  }
  return folded;
}

KeyPattern::KeyPattern(std::string typed) : typed_(std::move(typed)), folded_(folded_key(typed_)) {
  if (typed_.find_first_of("*?[") == typed_.npos) return;
  const std::string glob = with_python_sets(typed_);
  glob_.emplace(Glob(glob), Glob(folded_key(glob)));
}

KeyMatch KeyPattern::match(const KeyName& name) const {
  const auto& [file, key] = name;
  KeyMatch best = match_name(key);
  const auto also = [&](const std::string& other) { best = std::max(best, match_name(other)); };
  const bool is_printed_as_is = is_plain(key) && !key.empty();
  if (!is_printed_as_is) also(printed_key(key));
  if (file.empty()) return best;
  also(std::string(file) + ":" + std::string(key));
  if (!is_printed_as_is || !is_plain(file)) also(escaped(file) + ":" + printed_key(key));
  return best;
}

KeyMatch KeyPattern::match_name(std::string_view name) const {
  if (name == typed_) return KeyMatch::Exact;
  const std::string folded = folded_key(name);
  if (folded == folded_) return KeyMatch::Spelling;
  const bool is_match = glob_ && (glob_->first.matches(name) || glob_->second.matches(folded));
  return is_match ? KeyMatch::Glob : KeyMatch::None;
}

KeySelection::KeySelection(const std::vector<std::string>& include,
                           const std::vector<std::string>& exclude) {
  for (const std::string& typed : include) include_.push_back({KeyPattern(typed)});
  for (const std::string& typed : exclude) exclude_.push_back({KeyPattern(typed)});
}

void KeySelection::resolve(std::span<const KeyName> keys) {
  for (auto* patterns : {&include_, &exclude_}) {
    for (auto& [pattern, best] : *patterns) {
      for (const KeyName& key : keys) {
        best = std::max(best, pattern.match(key));
        if (best == KeyMatch::Exact) break;
      }
    }
  }
}

void KeySelection::refuse_missing(std::span<const KeyName> keys) const {
  for (const auto& [pattern, best] : include_) {
    if (best == KeyMatch::None && !pattern.is_glob()) refuse_unknown_key(pattern.typed(), keys);
  }
}

bool KeySelection::accepts(std::string_view file, std::string_view key) const {
  const KeyName name{file, key};
  return (include_.empty() || any_accepts(include_, name)) && !any_accepts(exclude_, name);
}

bool KeySelection::any_accepts(const std::vector<Resolved>& patterns, const KeyName& key) {
  return std::ranges::any_of(patterns, [&](const Resolved& resolved) {
    return resolved.best != KeyMatch::None && resolved.pattern.match(key) == resolved.best;
  });
}

std::vector<std::string> KeySelection::unmatched() const {
  std::vector<std::string> unmatched;
  for (const auto* patterns : {&include_, &exclude_}) {
    for (const auto& [pattern, best] : *patterns) {
      if (best == KeyMatch::None) unmatched.push_back(pattern.typed());
    }
  }
  return unmatched;
}

KeyRename::KeyRename(std::string from, const std::string& to)
    : from_(std::move(from)), to_(steps_of(to)), to_text_(front_text(to, to_)) {}

void KeyRename::resolve(std::span<const KeyName> keys) {
  is_spelled_exactly_ = std::ranges::any_of(keys, [&](const KeyName& name) {
    return name.key.starts_with(from_) && ends_at_step(name.key, from_, from_.size());
  });
  const bool is_any = std::ranges::any_of(
      keys, [&](const KeyName& name) { return front_bytes(name.key).has_value(); });
  if (!is_any) refuse_unknown_key(from_, keys);
}

std::optional<size_t> KeyRename::front_bytes(std::string_view key) const {
  if (is_spelled_exactly_ || from_.empty()) {
    const bool is_front = key.starts_with(from_) && ends_at_step(key, from_, from_.size());
    return is_front ? std::optional(from_.size()) : std::nullopt;
  }
  const std::string_view from = std::string_view(from_).substr(is_separator(from_[0]) ? 1 : 0);
  const auto end = end_of_front(key, from);
  return end && ends_at_step(key, from, *end) ? end : std::nullopt;
}

std::optional<std::string> KeyRename::renamed(std::string_view key) const {
  const auto front = front_bytes(key);
  if (!front) return std::nullopt;
  std::string_view rest = key.substr(*front);
  if (to_text_.empty() && !rest.empty() && is_separator(rest[0])) rest.remove_prefix(1);
  return to_text_ + std::string(rest);
}

void KeyRules::resolve(std::span<const KeyName> keys) {
  selection.resolve(keys);
  left_out_count_ = 0;
  for (const KeyName& name : keys)
    left_out_count_ += selection.accepts(name.file, name.key) ? 0 : 1;
  if (!selection.is_everything() && left_out_count_ == keys.size()) {
    throw Error(ErrorCode::InvalidArgument, {}, "no keys are left to write",
                "--include and --exclude choose the keys");
  }
  selection.refuse_missing(keys);
  for (KeyRename& rename : renames) rename.resolve(keys);
}

std::string KeyRules::renamed(std::string_view key) const {
  for (const KeyRename& rename : renames) {
    const auto renamed = rename.renamed(key);
    if (renamed && *renamed != key) return *renamed;
  }
  return std::string(key);
}

std::optional<std::string> nearest_key(std::string_view typed, std::span<const KeyName> keys) {
  const std::string wanted = folded_key(typed);
  if (wanted.empty() || wanted.size() > kTypedBytesMax) return std::nullopt;
  const bool names_file = typed.find(':') != typed.npos;
  const KeyName *nearest = nullptr, *holder = nullptr;
  std::pair<bool, size_t> best;  // of the holder: whether it goes on behind it, its length
  size_t limit = std::min(kDifferencesMax, wanted.size() / 3);
  for (const KeyName& name : keys.first(std::min(keys.size(), kKeysMax))) {
    if (name.key.size() > 2 * kTypedBytesMax) continue;
    const std::string key = folded_key(names_file ? qualified(name) : std::string(name.key));
    if (wanted.size() >= kHeldBytesMin && key.find(wanted) != key.npos) {
      const std::pair<bool, size_t> rank{!key.ends_with(wanted), key.size()};
      if (holder == nullptr || rank < best) std::tie(holder, best) = std::pair(&name, rank);
    }
    if (holder != nullptr) continue;
    const size_t differences = difference_count(wanted, key, limit);
    if (differences > limit || is_other_word(wanted, key)) continue;
    nearest = &name;
    if (differences == 0) break;  // in another file
    limit = differences - 1;
  }
  if (holder != nullptr) nearest = holder;
  return nearest == nullptr ? std::nullopt : std::optional(printed(*nearest));
}

void refuse_unknown_key(const std::string& typed, std::span<const KeyName> keys) {
  const auto nearest = nearest_key(typed, keys);
  throw Error(ErrorCode::NotFound, {.file = {}, .key = typed}, "no tensor or object has this key",
              nearest ? "did you mean '" + *nearest + "'?" : "");
}

std::string qualified_key(std::string_view file, std::string_view key) {
  return file.empty() ? printed_key(key) : escaped(file) + ":" + printed_key(key);
}

}  // namespace ckpt
