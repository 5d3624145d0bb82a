#include <ckpt/error.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace ckpt {
namespace {

struct Range {
  uint32_t first, last;
};

// Control characters (C0, DEL, C1), and the code points that a terminal may obey or hide: line and
// paragraph separators, and Unicode's format characters (bidirectional marks, overrides and
// isolates, zero-width characters, the byte order mark, tags).
constexpr Range kUnprintable[] = {{0x00, 0x1F},     {0x7F, 0x9F},      {0xAD, 0xAD},
                                  {0x61C, 0x61C},   {0x180E, 0x180E},  {0x200B, 0x200F},
                                  {0x2028, 0x202E}, {0x2060, 0x206F},  {0xFEFF, 0xFEFF},
                                  {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}};

bool is_unprintable(uint32_t c) {
  return std::ranges::any_of(kUnprintable,
                             [c](const Range& r) { return c >= r.first && c <= r.last; });
}

void append_code_point(std::string& out, uint32_t c) {
  const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
  out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
  append_hex(out, c, digits);
}

// How many characters at the front of a text are printed as they are, as nearly all are.
size_t count_plain(std::string_view text, std::string_view reserved) {
  const auto is_plain = [reserved](char c) {
    return c >= ' ' && c < '\x7F' &&
           std::ranges::none_of(reserved, [c](char other) { return c == other; });
  };
  return static_cast<size_t>(std::ranges::find_if_not(text, is_plain) - text.begin());
}

// `reserved`: printable characters that get a backslash.
std::string escape(std::string_view text, std::string_view reserved) {
  std::string out;
  out.reserve(text.size());
  while (true) {
    const size_t plain = count_plain(text, reserved);
    out.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) return out;
    const Utf8Char next = first_utf8_char(text);
    if (next.count_bytes == 0) {
      append_code_point(out, static_cast<uint8_t>(text[0]));
    } else if (is_unprintable(next.code_point)) {
      append_code_point(out, next.code_point);
    } else {
      if (reserved.find(text[0]) != std::string_view::npos) out += '\\';
      out.append(text.substr(0, next.count_bytes));
    }
    text.remove_prefix(next.count_bytes == 0 ? 1 : next.count_bytes);
  }
}

}  // namespace

std::string escaped(std::string_view name) { return escape(name, "'\"\\"); }

Error::Error(ErrorCode code, Where where, std::string problem, std::string hint)
    : code_(code), where_(std::move(where)), problem_(std::move(problem)), hint_(std::move(hint)) {
  compose();
}

Error& Error::within(const Where& outer) {
  if (where_.file.empty()) {
    where_.file = outer.file;
    if (!where_.offset_bytes) where_.offset_bytes = outer.offset_bytes;
  }
  if (where_.key.empty()) where_.key = outer.key;
  compose();
  return *this;
}

Error& Error::hinted(std::string hint) {
  if (hint_.empty()) hint_ = std::move(hint);
  return *this;
}

Error& Error::below(const std::string& folder) {
  const std::string prefix = folder + "/";
  const std::string& file = where_.file;
  if (file.empty() || file.front() == '/' || file.starts_with(prefix)) return *this;
  where_.file.insert(0, prefix);
  compose();
  return *this;
}

Error& Error::mark_incomplete() {
  is_incomplete_ = true;
  return *this;
}

void Error::compose() {
  std::string place = escaped(where_.file);
  if (where_.offset_bytes)
    place += (place.empty() ? "@" : " @") + std::to_string(*where_.offset_bytes);
  if (!where_.key.empty()) place += (place.empty() ? "'" : " '") + escaped(where_.key) + "'";
  if (!place.empty()) place += ": ";
  line_ = place +
          escape(problem_, "");  // a problem quotes names itself; here it is only kept on one line
}

}  // namespace ckpt
