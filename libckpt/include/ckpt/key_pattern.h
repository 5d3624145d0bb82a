#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/export.h>
#include <ckpt/glob.h>

// Keys as people type them: docs/formats/keys.md.
namespace ckpt {

// How well a typed key names a stored one; the best counts.
enum class KeyMatch : uint8_t {
  None,
  Glob,      // `*`, `?` and `[..]` in it match the key, or another spelling of it
  Spelling,  // the same key with other separators: "model.0.weight" for "/model/0.weight"
  Exact,     // as it is stored, or as listings print it
};

// A key for people: escaped, "(root)" for the empty pointer of a bare tensor or a file's whole
// tree, "\x20" for a blank in front.
std::string printed_key(std::string_view key);

// What all spellings of a key have in common: dots and slashes are one separator, one in front is
// left out, so is an '@' where a step begins; "~1" and "~0" of pointers are a slash and a tilde.
std::string folded_key(std::string_view key);

// A key, and the file that it is in where keys are not unique without it.
struct KeyName {
  std::string_view file, key;
};

// The key that somebody may have meant who typed one that is not there: one that holds it, else the
// one with the fewest differences, if these are few; as listings print it. Separators do not
// count. Looks at 10^5 keys at most.
std::optional<std::string> nearest_key(std::string_view typed, std::span<const KeyName> keys);

// Throws NotFound for a key that is not there, with the nearest one in the hint.
[[noreturn]] void refuse_unknown_key(const std::string& typed, std::span<const KeyName> keys);

// A key or glob as somebody types it: KEY, or FILE:KEY where files share keys.
class KeyPattern {
 public:
  explicit KeyPattern(std::string typed);

  const std::string& typed() const { return typed_; }
  bool is_glob() const { return glob_.has_value(); }
  KeyMatch match(const KeyName& key) const;

 private:
  KeyMatch match_name(std::string_view name) const;

  std::string typed_, folded_;
  std::optional<std::pair<Glob, Glob>> glob_;  // over names, over folded names
};

// --include and --exclude: which of all keys that there are. Without --include all are, --exclude
// wins. Of each pattern only the keys count that it matches best: a key that is spelled exactly
// stands for itself alone.
class CKPT_EXPORT KeySelection {
 public:
  KeySelection() = default;  // everything
  KeySelection(const std::vector<std::string>& include, const std::vector<std::string>& exclude);

  bool is_everything() const { return include_.empty() && exclude_.empty(); }
  // To be called with all keys that there are, before the functions below.
  void resolve(std::span<const KeyName> keys);
  bool accepts(std::string_view file, std::string_view key) const;
  // Patterns that match none of the keys, as they were typed.
  std::vector<std::string> unmatched() const;
  // Throws NotFound where a key that is to be included, and is no glob, is none of `keys`.
  void refuse_missing(std::span<const KeyName> keys) const;

 private:
  struct Resolved {
    KeyPattern pattern;
    KeyMatch best = KeyMatch::None;
  };
  static bool any_accepts(const std::vector<Resolved>& patterns, const KeyName& key);

  std::vector<Resolved> include_, exclude_;
};

// FROM=TO: a key that is FROM, or starts with it and a separator, starts with TO. FROM is a key in
// any spelling; where it starts keys as they are spelled, only these are renamed. A TO with a slash
// in front is a pointer, whose steps are put together with dots.
class KeyRename {
 public:
  KeyRename(std::string from, const std::string& to);

  // As KeySelection::resolve(). Throws NotFound where FROM is the front of none.
  void resolve(std::span<const KeyName> keys);
  // The steps that take the place of what FROM names.
  const std::vector<std::string>& to() const { return to_; }
  // Bytes of `key` that FROM names, without the separator behind them; none: it keeps its name.
  std::optional<size_t> front_bytes(std::string_view key) const;
  // The new name; without TO the separator goes, too: ("model.w", "model", "") is "w".
  std::optional<std::string> renamed(std::string_view key) const;

 private:
  std::string from_;
  std::vector<std::string> to_;
  std::string to_text_;
  bool is_spelled_exactly_ = false;  // some key starts with FROM as it was typed
};

}  // namespace ckpt
