#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace tools {

class Console;

// A name from a file as JSON can hold it: unchanged if it is UTF-8, else escaped like in the text
// output.
std::string json_text(std::string_view name);

// A JSON text with the characters in its strings that a terminal may obey or hide (DEL, C1, what
// ckpt::escaped() escapes) as \uXXXX. Its meaning is the same.
std::string printable_json(std::string_view json);

inline constexpr uint64_t kJsonSchemaVersion = 1;  // of documents that have not changed since

// {"schema_version": 1}: what every document starts from. Keys come out sorted.
nlohmann::json json_document(uint64_t schema_version = kJsonSchemaVersion);

// A list: each of the values as `as_json` gives it; names from files as json_text() gives them.
template <class Values, class AsJson>
nlohmann::json json_list(const Values& values, AsJson as_json) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& value : values) list.push_back(as_json(value));
  return list;
}
inline nlohmann::json json_texts(const std::vector<std::string>& names) {
  return json_list(names, json_text);
}

// The document and a line end on stdout.
void print_json(Console& console, const nlohmann::json& document);

// A JSON document written as it comes, in the form of print_json(): for lists too long to be held.
// The caller gives keys in sorted order.
class JsonStream {
 public:
  explicit JsonStream(std::ostream& out) : out_(out) {}

  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }
  JsonStream& key(std::string_view name);  // plain ASCII; its value follows
  void number(uint64_t value);
  void text(std::string_view name) { quoted(quote(name)); }
  void quoted(std::string_view json);  // what quote() gave
  // An array of quoted texts, as it would be written here: for lists that come again.
  std::string array_text(const std::vector<std::string_view>& quoted) const;
  void finish();  // the line end, and all that is not written yet

  static std::string quote(std::string_view name);

 private:
  void open(char bracket);
  void close(char bracket);
  void before_value();
  void new_line();

  std::ostream& out_;
  std::string buffer_;
  std::vector<bool> has_values_;  // of the open objects and arrays
  bool after_key_ = false;
};

}  // namespace tools
