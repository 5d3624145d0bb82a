// Several processes that fill one destination in an object store (store_staging.h).
#include <algorithm>
#include <random>
#include <utility>

#include <ckpt/error.h>

#include "base/text.h"
#include "io/publish.h"
#include "staging/store_staging.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPart = "part-", kLeader = "leader";

void put_note(S3Writer& writer, const std::string& key, const std::string& text) {
  const auto there = writer.text_of(key);
  if (there && there->text == text) return;
  if (writer.replace(key, text, there ? there->etag : "")) return;
  throw Error(ErrorCode::AlreadyExists, {writer.shown(key)}, "has come meanwhile",
              "each rank is to be one process");
}

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

std::string StoreStaging::note_key(const std::string& name) const {
  return place_.record_key + "/" + run_ + "/" + name;
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
    const auto note =
        writer.text_of(note_key(std::string(kPart) + std::to_string(options_.share.rank)));
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
    put_note(*place_.writer, note_key(std::string(kPart) + std::to_string(options_.share.rank)),
             part.text());
  });
}

// None where one is missing.
std::optional<std::vector<StorePart>> StoreStaging::all_parts() const {
  const uint32_t count = options_.share.world_size;
  if (place_.writer->objects_below(note_key(std::string(kPart))).size() < count)
    return std::nullopt;
  std::vector<StorePart> parts;
  for (uint32_t rank = 0; rank < count; ++rank) {
    const std::string key = note_key(std::string(kPart) + std::to_string(rank));
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
    const std::string key = note_key(std::string(kLeader));
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
    const auto there = place_.writer->text_of(note_key(std::string(kLeader)));
    if (!there || there->text != leader_note_) return;  // another one goes on
    if (is_sealing_) {
      place_.remove_notes(kPart);
      remove_made();
    }
    place_.writer->remove(note_key(std::string(kLeader)));
  } catch (const std::exception&) {  // the next one of this rank goes on, or --finish does
  }
}

std::string StoreStaging::left_job(const fs::path& destination) {
  const auto left = Place(destination).left();
  return left ? left->record.job : "";
}

}  // namespace ckpt
