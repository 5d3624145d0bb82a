#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace tools {

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
