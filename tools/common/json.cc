#include "common/json.h"

#include <algorithm>
#include <ostream>

#include <ckpt/error.h>
#include <ckpt/text.h>
#include <common/console.h>

namespace tools {
namespace {

void append_unit(std::string& json, uint32_t utf16_unit) {
  json += "\\u";
  ckpt::append_hex(json, utf16_unit, 4);
}

void append_code_point(std::string& json, uint32_t code_point) {
  if (code_point < 0x10000) return append_unit(json, code_point);
  append_unit(json, 0xD800 + ((code_point - 0x10000) >> 10));
  append_unit(json, 0xDC00 + (code_point & 0x3FF));
}

constexpr size_t kBufferBytes = size_t{64} << 10;

}  // namespace

std::string printable_json(std::string_view json) {
  std::string printable;
  printable.reserve(json.size());
  for (size_t length = 0; !json.empty(); json.remove_prefix(length)) {
    const bool is_plain = static_cast<unsigned char>(json[0]) < 0x7F;  // JSON's own
    const ckpt::Utf8Char character = is_plain ? ckpt::Utf8Char{} : ckpt::first_utf8_char(json);
    length = std::max<size_t>(character.count_bytes, 1);
    const std::string_view next = json.substr(0, length);
    if (character.count_bytes != 0 && ckpt::escaped(next) != next) {
      append_code_point(printable, character.code_point);
    } else {
      printable += next;
    }
  }
  return printable;
}

std::string json_text(std::string_view name) {
  return ckpt::is_utf8(name) ? std::string(name) : ckpt::escaped(name);
}

nlohmann::json json_document(uint64_t schema_version) {
  return {{"schema_version", schema_version}};
}

void print_json(Console& console, const nlohmann::json& document) {
  console.out() << printable_json(document.dump(2)) << '\n';
}

JsonStream& JsonStream::key(std::string_view name) {
  before_value();
  buffer_ += '"';
  buffer_ += name;
  buffer_ += "\": ";
  after_key_ = true;
  return *this;
}

void JsonStream::number(uint64_t value) { quoted(std::to_string(value)); }

void JsonStream::quoted(std::string_view json) {
  before_value();
  buffer_ += json;
}

std::string JsonStream::array_text(const std::vector<std::string_view>& quoted) const {
  if (quoted.empty()) return "[]";
  const std::string line_end = '\n' + std::string(2 * has_values_.size(), ' ');
  std::string text = "[";
  for (const std::string_view each : quoted) {
    if (text.size() > 1) text += ',';
    text += line_end;
    text += "  ";
    text += each;
  }
  return text + line_end + ']';
}

void JsonStream::finish() {
  buffer_ += '\n';
  out_ << buffer_;
  buffer_.clear();
}

std::string JsonStream::quote(std::string_view name) {
  return printable_json(nlohmann::json(json_text(name)).dump());
}

void JsonStream::open(char bracket) {
  before_value();
  buffer_ += bracket;
  has_values_.push_back(false);
}

void JsonStream::close(char bracket) {
  const bool had_values = has_values_.back();
  has_values_.pop_back();
  if (had_values) new_line();
  buffer_ += bracket;
}

void JsonStream::before_value() {
  if (!after_key_ && !has_values_.empty()) {
    if (has_values_.back()) buffer_ += ',';
    has_values_.back() = true;
    new_line();
  }
  after_key_ = false;
  if (buffer_.size() < kBufferBytes) return;
  out_ << buffer_;
  buffer_.clear();
}

void JsonStream::new_line() {
  buffer_ += '\n';
  buffer_.append(2 * has_values_.size(), ' ');
}

}  // namespace tools
