#include "common/json.h"

#include <algorithm>
#include <ostream>

#include <ckpt/error.h>
#include <common/console.h>

namespace tools {
namespace {

// Length of the UTF-8 sequence that starts `text`, 0 if there is none (RFC 3629: no overlong forms,
// no surrogates).
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t index) -> uint32_t { return static_cast<uint8_t>(text[index]); };
  const auto continues = [&](size_t index) { return (byte(index) & 0xC0u) == 0x80u; };
  const uint32_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t index = 1; index < length; ++index) {
    if (!continues(index)) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) > 0x9F) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// Of a sequence that sequence_length() has accepted.
uint32_t code_point_of(std::string_view sequence) {
  const auto first = static_cast<uint8_t>(sequence[0]);
  if (sequence.size() == 1) return first;
  uint32_t code_point = first & (0x7Fu >> sequence.size());
  for (const char byte : sequence.substr(1)) {
    code_point = code_point << 6 | (static_cast<uint8_t>(byte) & 0x3Fu);
  }
  return code_point;
}

void append_unit(std::string& json, uint32_t utf16_unit) {
  constexpr char kDigits[] = "0123456789abcdef";
  json += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) json += kDigits[utf16_unit >> shift & 15];
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
    length = std::max<size_t>(sequence_length(json), 1);
    const std::string_view next = json.substr(0, length);
    const bool may_hide = length > 1 || next[0] == '\x7F';  // the rest of ASCII is JSON's own
    if (may_hide && ckpt::escaped(next) != next) {
      append_code_point(printable, code_point_of(next));
    } else {
      printable += next;
    }
  }
  return printable;
}

std::string json_text(std::string_view name) {
  return is_utf8(name) ? std::string(name) : ckpt::escaped(name);
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
