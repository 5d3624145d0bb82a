// The page around the data of a report.
#include "inspect/page/html_page.h"

#include <utility>

namespace tools::inspect {

extern const std::string_view kReportHtml, kReportCss, kReportJs;  // report.html, .css, .js

namespace {

// As \u escapes, which JSON has in strings alone, where alone these characters can be.
std::string without_markup(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    // U+2028 and U+2029, which end lines in old JavaScript.
    const bool is_separator = json.substr(i, 2) == "\xE2\x80" && i + 2 < json.size() &&
                              (json[i + 2] == '\xA8' || json[i + 2] == '\xA9');
    if (c == '<') {
      text += "\\u003c";
    } else if (c == '>') {
      text += "\\u003e";
    } else if (c == '&') {
      text += "\\u0026";
    } else if (is_separator) {
      text += json[i + 2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string report_html(std::string_view json) {
  const std::pair<std::string_view, std::string> parts[] = {
      {"/*CSS*/", std::string(kReportCss)},
      {"/*DATA*/", without_markup(json)},
      {"/*JS*/", std::string(kReportJs)},
  };
  std::string page;
  std::string_view rest = kReportHtml;
  for (const auto& [place, text] : parts) {
    const size_t at = rest.find(place);
    page.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + place.size());
  }
  return page.append(rest);
}

}  // namespace tools::inspect
