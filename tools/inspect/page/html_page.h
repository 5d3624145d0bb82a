#pragma once

#include <string>
#include <string_view>

namespace tools::inspect {

// One HTML file that loads nothing, around a JSON document of docs/schema/report.json. No text in
// the document can end the element in which it stands.
std::string report_html(std::string_view json);

}  // namespace tools::inspect
