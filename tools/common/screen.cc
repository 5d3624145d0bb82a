// How wide the terminal is and what it can show.
#include "common/screen.h"

#include <common/environment.h>
#include <common/text.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

namespace tools {
namespace {

constexpr size_t kWidthMin = 20;  // narrower ones break lines by themselves
constexpr size_t kScreenWidthMax = 10'000;
constexpr size_t kUsualWidth = 80;

std::optional<size_t> width_of_environment() {
  const std::string text = variable("COLUMNS").value_or("");
  const bool is_number =
      !text.empty() && text.size() < 6 && text.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number || std::stoul(text) == 0) return std::nullopt;
  return std::stoul(text);
}

size_t width_of_terminal(int descriptor) {
  if (const auto width = width_of_environment()) return *width;
  winsize size = {};
  const bool is_known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return is_known ? size.ws_col : kUsualWidth;
}

// The first of these that is set decides, as in POSIX; asked by name, since the locale may be one
// that this machine does not have.
bool locale_is_utf8() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    auto locale = variable(name);
    if (!locale) continue;
    std::ranges::transform(*locale, locale->begin(), [](unsigned char c) { return tolower(c); });
    return locale->find("utf-8") != std::string::npos || locale->find("utf8") != std::string::npos;
  }
  return false;
}

}  // namespace

Screen Screen::of(int descriptor) {
  Screen screen;
  screen.is_utf8 = locale_is_utf8();
  if (isatty(descriptor) == 1) {
    screen.width = std::clamp(width_of_terminal(descriptor), kWidthMin, kScreenWidthMax);
  }
  return screen;
}

std::string Screen::shown(std::string_view utf8) const {
  if (shows_all()) return std::string(utf8);
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char character : utf8) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x80) {
      text += character;
    } else {
      text += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text;
}

std::string fitted(std::string_view text, const Screen& screen) {
  const std::string shown = screen.shown(text);
  return screen.width ? wrapped(shown, *screen.width) : shown;
}

}  // namespace tools
