// Several processes that fill one destination in an object store (store_staging.h).

#include <cstring>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <ckpt/error.h>

#include "base/text.h"
#include "codec/strict_json.h"
#include "io/publish.h"
#include "remote/url_text.h"
#include "staging/store_staging.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr size_t kDepth = 5;  // [job, [[path, ..., [[number, ...], ...]], ...]]

using PartRow = std::tuple<uint32_t, uint64_t, std::string, std::string>;
using FileRow = std::tuple<std::string, uint64_t, uint32_t, std::string, std::string, bool,
                           std::vector<PartRow>>;
using Rows = std::pair<std::string, std::vector<FileRow>>;

[[noreturn]] void refuse(const std::string&, const std::string& problem) {
  throw Error(ErrorCode::Corrupt, {}, "the record of a part " + problem);
}

FileRow row_of(const SentFile& file) {
  const auto& [piece, upload, parts] = file;
  FileRow row{piece.path, piece.bytes.count_bytes, piece.crc32, upload.key,
              upload.id,  upload.has_checksums,    {}};
  for (const auto& [number, part] : parts) {
    std::get<6>(row).emplace_back(number, part.count_bytes, part.etag, part.sha256);
  }
  return row;
}

SentFile file_of(FileRow row) {
  auto& [path, count_bytes, crc32, key, id, has_checksums, parts] = row;
  SentFile file{{std::move(path), {0, count_bytes}, crc32}, {std::move(key), std::move(id)}, {}};
  file.upload.has_checksums = has_checksums;
  for (auto& [number, part_bytes, etag, sha256] : parts) {
    file.parts[number] = {part_bytes, std::move(etag), std::move(sha256)};
  }
  return file;
}

namespace fs = std::filesystem;

class TextFile final : public OpenedFile {
 public:
  TextFile(std::shared_ptr<const std::string> text, std::string name)
      : text_(std::move(text)), name_(std::move(name)), state_{.count_bytes = text_->size()} {}

  uint64_t size_bytes() const override { return text_->size(); }
  const FileState& state() const override { return state_; }
  const std::string& file_name() const override { return name_; }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (offset_bytes > text_->size() || out.size() > text_->size() - offset_bytes) {
      throw Error(ErrorCode::Corrupt, {name_, offset_bytes}, "more bytes are expected here");
    }
    std::memcpy(out.data(), text_->data() + offset_bytes, out.size());
  }

 private:
  std::shared_ptr<const std::string> text_;
  std::string name_;
  FileState state_;
};

class FolderToCome final : public Folder {
 public:
  FolderToCome(std::shared_ptr<const Folder> store, HeldTexts held)
      : store_(std::move(store)), held_(std::move(held)) {}

  std::vector<std::string> list(const fs::path& folder) const override {
    std::set<std::string> names;
    if (store_->has(folder)) {
      for (std::string& name : store_->list(folder)) names.insert(std::move(name));
    }
    const std::string start = below(folder);
    for (auto held = held_.lower_bound(start); held != held_.end(); ++held) {
      if (!held->first.starts_with(start)) break;
      names.insert(
          held->first.substr(start.size(), held->first.find('/', start.size()) - start.size()));
    }
    if (names.empty()) throw Error(ErrorCode::NotFound, {folder.string()}, "does not exist");
    return {names.begin(), names.end()};
  }

  Entry stat(const fs::path& path) const override {
    const auto held = held_.find(parse_address(path).path);
    if (held != held_.end()) return {EntryKind::File, {.count_bytes = held->second->size()}};
    const Entry entry = store_->stat(path);
    const auto inside = held_.lower_bound(below(path));
    const bool is_folder = inside != held_.end() && inside->first.starts_with(below(path));
    return entry.kind == EntryKind::Absent && is_folder ? Entry{EntryKind::Folder, {}} : entry;
  }

  std::unique_ptr<OpenedFile> open(const fs::path& folder, const Name& name) const override {
    check_inside(folder, name.path);
    const auto held = held_.find(parse_address(folder / name.path).path);
    if (held == held_.end()) return store_->open(folder, name);
    return std::make_unique<TextFile>(held->second, name.shown.empty() ? name.path : name.shown);
  }

  void check_inside(const fs::path& folder, const std::string& name) const override {
    store_->check_inside(folder, name);
  }
  fs::path resolved(const fs::path& path) const override { return store_->resolved(path); }

 private:
  static std::string below(const fs::path& folder) { return parse_address(folder).path + "/"; }

  std::shared_ptr<const Folder> store_;
  HeldTexts held_;
};

constexpr std::string_view kPart = "part-", kLeader = "leader";

}  // namespace

// NUMBER/part-RANK, NUMBER/leader: nothing else below a record is ours.
void StoreStaging::Place::remove_notes(std::string_view start) const {
  const std::string folder = record_key + "/";
  for (const ListedObject& note : writer->objects_below(folder)) {
    const std::string_view name = std::string_view(note.key).substr(folder.size());
    const size_t slash = name.find('/');
    if (slash == name.npos) continue;
    const std::string_view last = name.substr(slash + 1);
    const bool is_ours = last == kLeader || last.starts_with(kPart);
    if (is_ours && last.starts_with(start)) writer->remove(note.key);
  }
}

std::string StoreStaging::note_key(std::string_view name) const {
  return place_.record_key + "/" + run_ + "/" + std::string(name);
}

std::string StoreStaging::part_key(uint32_t rank) const {
  return note_key(kPart) + std::to_string(rank);
}

// The first one makes the record; all take it from the store.
void StoreStaging::join() {
  if (!place_.left()) {
    if (place_.exists()) throw_exists(place_.shown);
    const bool is_first = place_.writer->put_new(place_.record_key, new_record());
    if (is_first && place_.exists()) {  // another run was just done with it
      place_.writer->remove(place_.record_key);
      throw_exists(place_.shown);
    }
  }
  const auto left = place_.left();
  if (!left || left->is_whole) throw_exists(place_.shown);
  refuse_other_job(place_.writer->shown(place_.record_key), left->record.job, options_.job);
  run_ = left->run;
  find_left_uploads();
}

bool StoreStaging::is_of_this_run() const {
  const auto left = place_.left();
  return left && left->run == run_;
}

std::optional<StoreStaging::Pieces> StoreStaging::kept_part() {
  return unless_stopped([&]() -> std::optional<Pieces> {
    S3Writer& writer = *place_.writer;
    const auto note = writer.text_of(part_key(options_.share.rank));
    auto part = note ? StorePart::parse(note->text) : std::nullopt;
    if (!part || part->job != options_.job) return std::nullopt;
    for (SentFile& file : part->files) {
      const auto listed = writer.parts_of(file.upload);
      const auto object = listed ? std::nullopt : writer.object_at(file.upload.key);
      const bool is_there = listed ? S3Writer::are_same(*listed, file.parts)
                                   : object && S3Writer::may_be(*object, file.parts);
      if (!is_there) return std::nullopt;
      kept_bytes_ += file.piece.bytes.count_bytes;
    }
    std::vector<StorePart> parts;
    parts.push_back(std::move(*part));
    return adopt(std::move(parts));
  });
}

void StoreStaging::leave_part(const Pieces& written) {
  StorePart part{options_.job, {}};
  for (const FinishedPiece& piece : written) {
    const File& file = files_.at(piece.path);
    part.files.push_back({piece, file.upload, file.parts});
  }
  unless_stopped([&] {
    if (!is_of_this_run()) {
      throw Error(ErrorCode::AlreadyExists, {place_.writer->shown(place_.record_key)},
                  "is gone, or of another run: this one was ended meanwhile");
    }
    S3Writer& writer = *place_.writer;
    const std::string key = part_key(options_.share.rank), text = part.text();
    const auto there = writer.text_of(key);
    if (there && there->text == text) return;
    if (writer.replace(key, text, there ? there->etag : "")) return;
    throw Error(ErrorCode::AlreadyExists, {writer.shown(key)}, "has come meanwhile",
                "each rank is to be one process");
  });
}

// None where one is missing.
std::optional<std::vector<StorePart>> StoreStaging::all_parts() const {
  const uint32_t count = options_.share.world_size;
  if (place_.writer->objects_below(note_key(kPart)).size() < count) return std::nullopt;
  std::vector<StorePart> parts;
  for (uint32_t rank = 0; rank < count; ++rank) {
    const std::string key = part_key(rank);
    const auto note = place_.writer->text_of(key);
    if (!note) return std::nullopt;
    auto part = StorePart::parse(note->text);
    if (!part || part->job != options_.job) {
      refuse_foreign(place_.writer->shown(key), "is not the record of a part of this job");
    }
    parts.push_back(std::move(*part));
  }
  return parts;
}

StoreStaging::Pieces StoreStaging::adopt(std::vector<StorePart> parts) {
  Pieces pieces;
  for (StorePart& part : parts) {
    for (auto& [piece, upload, sent] : part.files) {
      File file{place_.key_of(piece.path), piece.bytes.count_bytes};
      uint64_t sent_bytes = 0;
      for (const auto& [number, each] : sent) sent_bytes += each.count_bytes;
      if (upload.key != file.key || sent_bytes != file.count_bytes) {
        throw Error(ErrorCode::Corrupt, {place_.writer->shown(file.key)},
                    "is not what the record of a part says that was sent");
      }
      file.upload = std::move(upload);
      file.parts = std::move(sent);
      files_.insert_or_assign(piece.path, std::move(file));
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

// Who leads says so with a request that only one can win. A process of the same rank has been
// started again, so the earlier one is not at work.
std::optional<StoreStaging::Pieces> StoreStaging::try_lead(bool takes_over) {
  return unless_stopped([&]() -> std::optional<Pieces> {
    S3Writer& writer = *place_.writer;
    if (!all_parts()) return std::nullopt;
    const std::string key = note_key(kLeader);
    const std::string mine =
        std::string(kTextMark) + "rank " + std::to_string(options_.share.rank) + "\n";
    const auto there = writer.text_of(key);
    if (there && !takes_over && !there->text.starts_with(mine)) return std::nullopt;
    leader_note_ = mine + hex(uint64_t{std::random_device()()}) + "\n";
    if (!writer.replace(key, leader_note_, there ? there->etag : "")) return std::nullopt;
    is_leader_ = true;
    // The last one may have removed all of it meanwhile, but for the note that was just put.
    auto parts = is_of_this_run() ? all_parts() : std::nullopt;
    if (parts) return adopt(std::move(*parts));
    is_leader_ = false;
    writer.remove(key);
    return std::nullopt;
  });
}

// What was made of the others' parts goes, and with it what says that these are sent.
void StoreStaging::stop_leading() {
  try {
    place_.writer->stop(false);
    const auto there = place_.writer->text_of(note_key(kLeader));
    if (!there || there->text != leader_note_) return;  // another one goes on
    if (is_sealing_) {
      place_.remove_notes(kPart);
      remove_made();
    }
    place_.writer->remove(note_key(kLeader));
  } catch (const std::exception&) {  // the next one of this rank goes on, or --finish does
  }
}

std::string StoreStaging::left_job(const fs::path& destination) {
  const auto left = Place(destination).left();
  return left ? left->record.job : "";
}

std::string StorePart::text() const {
  Rows rows{job, {}};
  for (const SentFile& file : files) rows.second.push_back(row_of(file));
  return std::string(kTextMark) + "part\n" +
         json(rows).dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::optional<StorePart> StorePart::parse(const std::string& text) {
  const std::string head = std::string(kTextMark) + "part\n";
  if (!text.starts_with(head)) return std::nullopt;
  const JsonTree tree = parse_strict_json(text.substr(head.size()), {kDepth, refuse});
  try {
    Rows rows = tree->get<Rows>();
    StorePart part{std::move(rows.first), {}};
    for (FileRow& row : rows.second) part.files.push_back(file_of(std::move(row)));
    return part;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

std::shared_ptr<const Folder> folder_to_come(std::shared_ptr<const Folder> bucket, HeldTexts held) {
  return std::make_shared<const FolderToCome>(std::move(bucket), std::move(held));
}

}  // namespace ckpt
