#include "staging/job_record.h"

#include <charconv>
#include <span>

#include "base/text.h"
#include "codec/crc32.h"
#include "io/directory.h"
#include "io/publish.h"

namespace ckpt {

namespace {

constexpr size_t kCrcDigits = 8;

// The text before `end`, which is taken off `rest` with it; nullopt where there is no end.
std::optional<std::string_view> take_until(std::string_view& rest, char end) {
  const size_t length = rest.find(end);
  if (length == rest.npos) return std::nullopt;
  const std::string_view taken = rest.substr(0, length);
  rest.remove_prefix(length + 1);
  return taken;
}

std::optional<std::string_view> value_of(std::string_view& rest, std::string_view name) {
  std::string_view after = rest;
  auto line = take_until(after, '\n');
  if (!line || !line->starts_with(name)) return std::nullopt;
  rest = after;
  return line->substr(name.size());
}

template <typename Number>
std::optional<Number> number(std::string_view text, int base) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// A name on one line: "\\" and the end of a line as \xNN.
std::string as_one_line(std::string_view path) {
  std::string text;
  for (const char byte : path) {
    if (byte == '\\') {
      text += "\\x5c";
    } else if (byte == '\n') {
      text += "\\x0a";
    } else {
      text += byte;
    }
  }
  return text;
}

std::string from_one_line(std::string_view text) {
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_quote = text.substr(i, 2) == "\\x";
    path += !is_quote ? text[i] : text.substr(i, 4) == "\\x0a" ? '\n' : '\\';
    if (is_quote) i += 3;
  }
  return path;
}

std::string text_of_crcs(const std::vector<uint32_t>& crcs) {
  std::string text;
  for (const uint32_t crc : crcs) text += (text.empty() ? "" : ",") + hex(crc);
  return text.empty() ? "-" : text;
}

std::optional<std::vector<uint32_t>> parse_crcs(std::string_view text) {
  std::vector<uint32_t> crcs;
  if (text == "-") return crcs;
  for (size_t at = 0; at <= text.size(); at += kCrcDigits + 1) {
    const auto crc = number<uint32_t>(text.substr(at, kCrcDigits), 16);
    const bool is_separated = at + kCrcDigits >= text.size() || text[at + kCrcDigits] == ',';
    if (!crc || !is_separated) return std::nullopt;
    crcs.push_back(*crc);
  }
  return crcs;
}

std::string checksum_of(std::string_view text) {
  return hex(crc32(std::as_bytes(std::span(text))));
}

std::string line_of(const FinishedPiece& piece) {
  const std::string text = hex(piece.crc32) + " " + std::to_string(piece.bytes.offset_bytes) + " " +
                           std::to_string(piece.bytes.count_bytes) + " " +
                           text_of_crcs(piece.record_crcs) + " " + as_one_line(piece.path);
  return "piece " + checksum_of(text) + " " + text + "\n";
}

std::optional<FinishedPiece> parse_piece(std::string_view value) {
  const auto checksum = take_until(value, ' ');
  if (!checksum || *checksum != checksum_of(value)) return std::nullopt;
  const auto crc = take_until(value, ' ');
  const auto offset = take_until(value, ' ');
  const auto count = take_until(value, ' ');
  const auto crcs = take_until(value, ' ');
  if (!crc || !offset || !count || !crcs) return std::nullopt;
  const auto crc_number = number<uint32_t>(*crc, 16);
  const auto offset_bytes = number<uint64_t>(*offset, 10);
  const auto count_bytes = number<uint64_t>(*count, 10);
  auto record_crcs = parse_crcs(*crcs);
  if (!crc_number || !offset_bytes || !count_bytes || !record_crcs) return std::nullopt;
  return FinishedPiece{
      from_one_line(value), {*offset_bytes, *count_bytes}, *crc_number, std::move(*record_crcs)};
}

}  // namespace

std::string JobIdentity::text() const {
  return "shardwise " + tool + "\nplan " + plan + "\nsource " + source + "\nprocesses " +
         std::to_string(processes) + "\n";
}

std::optional<JobIdentity> JobIdentity::parse(std::string_view text) {
  const auto tool = value_of(text, "shardwise ");
  const auto plan = value_of(text, "plan ");
  const auto source = value_of(text, "source ");
  const auto processes = value_of(text, "processes ");
  if (!tool || !plan || !source || !processes) return std::nullopt;
  const auto count = number<uint32_t>(*processes, 10);
  if (!count) return std::nullopt;
  return JobIdentity{std::string(*tool), std::string(*plan), std::string(*source), *count};
}

std::string JobIdentity::difference(const JobIdentity& other) const {
  if (tool != other.tool) return "by version " + tool + " of this program, not " + other.tool;
  if (source != other.source) return "from a source that has changed since";
  if (plan != other.plan) return "with another plan";
  if (processes != other.processes) {
    return "by " + std::to_string(processes) + " processes, not " + std::to_string(other.processes);
  }
  return "";
}

std::optional<PartRecord> read_part_record(const std::filesystem::path& path) {
  const auto text = text_of(path);
  if (!text) return std::nullopt;
  const auto job = JobIdentity::parse(*text);
  if (!job) return std::nullopt;
  PartRecord record{job->text(), {}, false};
  std::string_view rest = std::string_view(*text).substr(record.job.size());
  while (const auto value = value_of(rest, "piece ")) {
    if (auto piece = parse_piece(*value)) record.pieces.push_back(std::move(*piece));
  }
  const auto count = value_of(rest, "complete ");
  record.is_complete = count && *count == std::to_string(record.pieces.size()) && rest.empty();
  return record;
}

PartRecordWriter::PartRecordWriter(const std::filesystem::path& path, const JobIdentity& job,
                                   const std::vector<FinishedPiece>& finished)
    : path_(path), piece_count_(finished.size()) {
  std::string text = job.text();
  for (const FinishedPiece& piece : finished) text += line_of(piece);
  // In one step: what was carried over is never lost.
  std::filesystem::path fresh = path;
  fresh += ".new";
  remove_tree(fresh);
  file_.emplace(File::create(fresh, 0));
  append(text);
  replace_name(fresh, path);
}

void PartRecordWriter::append(const std::string& line) {
  const std::scoped_lock lock(mutex_);
  file_->write_at(end_bytes_, std::as_bytes(std::span(line)));
  end_bytes_ += line.size();
}

void PartRecordWriter::add(const FinishedPiece& finished) {
  append(line_of(finished));
  const std::scoped_lock lock(mutex_);
  ++piece_count_;
}

void PartRecordWriter::complete() {
  append("complete " + std::to_string(piece_count_) + "\n");
  sync_file(path_);
  Directory::open(path_.parent_path()).sync();
}

}  // namespace ckpt
