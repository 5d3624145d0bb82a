#include "staging/job_record.h"

#include <span>
#include <tuple>
#include <utility>

#include <ckpt/error.h>

#include "base/text.h"
#include "codec/crc32.h"
#include "codec/strict_json.h"
#include "io/directory.h"
#include "io/publish.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr size_t kLineDepth = 2;                               // the fields, and the list in them
constexpr std::string_view kOtherJob = "shardwise staging\n";  // in front of other texts
constexpr std::string_view kFiles = "\nfiles [";

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

std::string checksum_of(std::string_view text) {
  return hex(crc32(std::as_bytes(std::span(text))));
}

std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

[[noreturn]] void refuse_line(const std::string&, const std::string& problem) {
  throw Error(ErrorCode::Corrupt, {}, "a line of a record " + problem);
}

// [path, offset, count, crc, [crc of each record, ...]]. Not as a JSON array of nlohmann's: where
// there is no memory, destroying that ends the process (codec/strict_json.h).
std::string line_of(const FinishedPiece& piece) {
  std::string text = "[" + quoted(piece.path);
  for (const uint64_t number :
       {piece.bytes.offset_bytes, piece.bytes.count_bytes, uint64_t{piece.crc32}}) {
    text += "," + std::to_string(number);
  }
  text += ",[";
  for (const uint32_t crc : piece.record_crcs) {
    text += (text.back() == '[' ? "" : ",") + std::to_string(crc);
  }
  text += "]]";
  return "piece " + checksum_of(text) + " " + text + "\n";
}

std::optional<FinishedPiece> parse_piece(std::string_view value) {
  const auto checksum = take_until(value, ' ');
  if (!checksum || *checksum != checksum_of(value)) return std::nullopt;
  const JsonTree fields = parse_strict_json(std::string(value), {kLineDepth, refuse_line});
  try {
    using Fields = std::tuple<std::string, uint64_t, uint64_t, uint32_t, std::vector<uint32_t>>;
    auto [path, offset_bytes, count_bytes, crc, record_crcs] = fields->get<Fields>();
    return FinishedPiece{std::move(path), {offset_bytes, count_bytes}, crc, std::move(record_crcs)};
  } catch (const json::exception&) {
    return std::nullopt;
  }
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
  const auto count = number_in<uint32_t>(*processes);
  if (!count) return std::nullopt;
  return JobIdentity{std::string(*tool), std::string(*plan), std::string(*source), *count};
}

std::string JobIdentity::difference(const JobIdentity& other) const {
  if (tool != other.tool) return "by version " + tool + " of this program, not " + other.tool;
  if (source != other.source) return "from another source, or from one that has changed since";
  if (plan != other.plan) return "with another plan";
  if (processes != other.processes) {
    return "by " + std::to_string(processes) + " processes, not " + std::to_string(other.processes);
  }
  return "";
}

void refuse_other_job(const std::string& left, const std::string& found,
                      const std::string& wanted) {
  if (found == wanted) return;
  const auto other = JobIdentity::parse(found), mine = JobIdentity::parse(wanted);
  const std::string difference = other && mine ? other->difference(*mine) : "for another job";
  throw Error(ErrorCode::AlreadyExists, {left},
              "the unfinished output was made " + difference + ", so it cannot be continued",
              "--clean removes it");
}

// [PATH, ...] after the job, in a line of its own.
std::string StagingRecord::text() const {
  const bool is_marked = job.starts_with(kTextMark);
  std::string made = (is_marked ? "" : std::string(kOtherJob)) + job + std::string(kFiles);
  for (const std::string& file : files) {
    made += (made.back() == '[' ? "" : ",") + quoted(file);
  }
  return made + "]\n";
}

std::optional<StagingRecord> StagingRecord::parse(const std::string& text) {
  if (!text.starts_with(kTextMark)) return std::nullopt;
  StagingRecord record{text, {}};
  const size_t end = text.rfind(kFiles);
  if (end != text.npos) {
    record.job.resize(end);
    const JsonTree files =
        parse_strict_json(text.substr(end + kFiles.size() - 1), {kLineDepth, refuse_line});
    try {
      record.files = files->get<std::vector<std::string>>();
    } catch (const json::exception&) {
      return std::nullopt;
    }
  }
  if (record.job.starts_with(kOtherJob)) record.job.erase(0, kOtherJob.size());
  return record;
}

std::optional<PartRecord> read_part_record(const Place& place) {
  const auto text = text_of(place);
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

PartRecordWriter::PartRecordWriter(const Place& folder, const std::string& name,
                                   const JobIdentity& job,
                                   const std::vector<FinishedPiece>& finished)
    : folder_(folder), place_(folder / name), piece_count_(finished.size()) {
  std::string text = job.text();
  for (const FinishedPiece& piece : finished) text += line_of(piece);
  // In one step: what was carried over is never lost.
  const Place fresh = folder / (name + ".new");
  remove_file(fresh);
  file_.emplace(File::create(fresh, 0));
  append(text);
  replace_name(fresh, place_);
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
  sync_file(place_);
  Directory::open(folder_).sync();
}

}  // namespace ckpt
