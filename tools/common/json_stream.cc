#include "common/json_stream.h"

#include <common/json.h>

#include <ostream>

namespace tools {

namespace {

constexpr size_t kBufferBytes = size_t{64} << 10;

}  // namespace

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
