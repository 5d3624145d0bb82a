#include "staging/store_staging.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include <ckpt/run_jobs.h>

#include "base/text.h"
#include "io/directory.h"
#include "remote/remote_folder.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kPartBytesMin = 8 << 20;
constexpr uint64_t kPartBytesMax = 64 << 20;  // two buffers of each worker have that length
constexpr unsigned kRequestsAtOnce = 8;
constexpr std::string_view kRun = "run ", kMarked = " marked";

bool is_in(const std::string& path, const std::string& folder) {
  return folder.empty() || path == folder || path.starts_with(folder + "/");
}

void refuse_overlap(const std::string& shown, const Address& to, const std::string& source) {
  if (scheme_of(source) != to.scheme) return;
  const Address from = parse_address(source);
  if (from.host != to.host) return;
  const char* const problem = from.path == to.path        ? "the destination is the source"
                              : is_in(to.path, from.path) ? "the destination lies inside the "
                                                            "source"
                              : is_in(from.path, to.path) ? "the destination contains the source"
                                                          : nullptr;
  if (problem != nullptr) throw Error(ErrorCode::InvalidArgument, {shown}, problem);
}

[[noreturn]] void throw_left(const std::string& shown) {
  throw Error(ErrorCode::AlreadyExists, {shown},
              "another run is writing this destination, or was interrupted",
              "if none is at work: --resume continues it, --clean removes it");
}

}  // namespace

class StoreStaging::Sink final : public FileSink {
 public:
  Sink(StoreStaging& staging, File& file) : staging_(staging), file_(file) {}

  void write_at(uint64_t offset_bytes, std::span<const std::byte> blocks) override {
    const auto bytes =
        blocks.first(std::min<uint64_t>(blocks.size(), file_.count_bytes - offset_bytes));
    const auto number = static_cast<uint32_t>(offset_bytes / staging_.part_bytes_ + 1);
    const bool is_part =
        offset_bytes % staging_.part_bytes_ == 0 &&
        (bytes.size() == staging_.part_bytes_ || offset_bytes + bytes.size() == file_.count_bytes);
    if (!is_part) throw std::logic_error("a part of an object has another length");
    const auto sent = file_.sent.find(number);
    const bool is_kept = sent != file_.sent.end() && S3Writer::is_same(sent->second, bytes);
    S3Writer::Part part = is_kept ? sent->second : staging_.unless_stopped([&] {
      return staging_.place_.writer->send_part(file_.upload, number, bytes);
    });
    const std::scoped_lock lock(staging_.mutex_);
    if (is_kept) staging_.kept_bytes_ += bytes.size();
    file_.parts.insert_or_assign(number, std::move(part));
  }
  void finish() override {}  // seal() does

 private:
  StoreStaging& staging_;
  File& file_;
};

void StoreStaging::throw_exists(const std::string& shown) {
  throw Error(ErrorCode::AlreadyExists, {shown}, "the destination exists",
              "remove it first, or give another one: what is in an object store is never replaced");
}

// By its number who makes a record knows it again.
std::string StoreStaging::new_record() const {
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  return std::string(kRun) + hex(number) + std::string(is_marked_ ? kMarked : "") + "\n" +
         StagingRecord{options_.job, options_.files}.text();
}

StoreStaging::Place::Place(const fs::path& destination)
    : shown(address_text(destination)), address(parse_address(destination)) {
  if (address.path.empty()) {
    throw Error(ErrorCode::InvalidArgument, {shown}, "is a whole bucket",
                "expected s3://BUCKET/PREFIX");
  }
  const size_t name = address.path.rfind('/') + 1;  // 0 where there is none
  record_key =
      address.path.substr(0, name) + "." + address.path.substr(name) + ".shardwise-partial";
  writer = writer_to(destination);
}

std::string StoreStaging::Place::key_of(const std::string& path) const {
  return path.empty() ? address.path : address.path + "/" + path;
}

bool StoreStaging::Place::exists() const {
  return writer->object_at(address.path) || writer->has_any_below(address.path + "/");
}

std::optional<StoreStaging::Left> StoreStaging::Place::left() const {
  auto found = writer->text_of(record_key);
  if (!found) return std::nullopt;
  const size_t end = std::min(found->text.find('\n'), found->text.size());
  const std::string_view head = std::string_view(found->text).substr(0, end);
  auto record =
      head.starts_with(kRun)
          ? StagingRecord::parse(found->text.substr(std::min(end + 1, found->text.size())))
          : std::nullopt;
  if (!record) refuse_foreign(writer->shown(record_key), "is not a record of this program");
  const size_t run_end = std::min(head.find(' ', kRun.size()), head.size());
  Left left{std::move(*record), std::move(found->etag),
            std::string(head.substr(kRun.size(), run_end - kRun.size()))};
  const auto there = objects();
  left.is_whole = head.ends_with(kMarked) &&
                  std::ranges::all_of(left.record.files, [&](const std::string& file) {
                    return there.contains(key_of(file));
                  });
  return left;
}

std::map<std::string, ListedObject> StoreStaging::Place::objects() const {
  std::map<std::string, ListedObject> there;
  if (auto object = writer->object_at(address.path)) there[address.path] = std::move(*object);
  for (ListedObject& object : writer->objects_below(address.path + "/")) {
    there[object.key] = std::move(object);
  }
  return there;
}

void StoreStaging::Place::remove_objects(const std::vector<std::string>& files) const {
  const auto there = objects();
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    if (there.contains(key_of(*file))) writer->remove(key_of(*file));
  }
}

void StoreStaging::Place::abort_uploads(const std::vector<std::string>& files) const {
  std::set<std::string> ours;
  for (const std::string& file : files) ours.insert(key_of(file));
  for (const ListedUpload& upload : writer->uploads_below(address.path)) {
    if (ours.contains(upload.key)) writer->drop(upload);
  }
}

uint64_t StoreStaging::part_bytes_for(uint64_t count_bytes) {
  uint64_t part_bytes = kPartBytesMin;
  while (part_bytes < kPartBytesMax && count_bytes / S3Writer::kPartsMax >= part_bytes) {
    part_bytes *= 2;
  }
  if (count_bytes / S3Writer::kPartsMax < part_bytes) return part_bytes;
  throw Error(ErrorCode::Unsupported, {},
              "one of the files has " + std::to_string(count_bytes) +
                  " bytes; an object of at most " +
                  std::to_string(kPartBytesMax * S3Writer::kPartsMax) + " can be written");
}

StoreStaging::StoreStaging(const fs::path& destination, StagingOptions options, bool is_marked,
                           std::stop_token stop)
    : place_(destination),
      options_(std::move(options)),
      is_marked_(is_marked),
      stop_(std::move(stop)),
      at_stop_(stop_, [this] { place_.writer->stop(true); }) {
  if (options_.force) {
    throw Error(ErrorCode::Unsupported, {place_.shown},
                "--force cannot replace what is in an object store: not in one step",
                "remove it first, or give another destination");
  }
  refuse_overlap(place_.shown, place_.address, options_.source);
  try {
    is_shared() ? join() : enter();
  } catch (...) {
    abandon();
    throw;
  }
}

StoreStaging::~StoreStaging() {
  if (!is_committed_) abandon();
}

void StoreStaging::enter() {
  const std::string shown = place_.writer->shown(place_.record_key);
  const auto left = place_.left();
  if (left && left->is_whole) throw_exists(place_.shown);
  const bool may_continue = options_.resume && !options_.job.empty();
  if (left && !(may_continue && !left->record.job.empty())) throw_left(shown);
  if (left) refuse_other_job(shown, left->record.job, options_.job);
  if (!left && place_.exists()) throw_exists(place_.shown);
  record_ = new_record();
  if (!place_.writer->replace(place_.record_key, record_, left ? left->etag : "")) {
    throw_left(shown);
  }
  owns_record_ = true;
  if (left) {
    refuse_strangers();
    place_.remove_objects(options_.files);  // what these hold is not known
    return find_left_uploads();
  }
  if (!place_.exists()) return;
  place_.writer->remove(place_.record_key);  // another run was just done with it
  owns_record_ = false;
  throw_exists(place_.shown);
}

// Their parts are looked at when they would be sent again.
void StoreStaging::find_left_uploads() {
  for (ListedUpload& upload : place_.writer->uploads_below(place_.address.path)) {
    left_uploads_[upload.key] = upload.id;
  }
}

void StoreStaging::refuse_strangers() const {
  std::set<std::string> ours;
  for (const std::string& file : options_.files) ours.insert(place_.key_of(file));
  for (const ListedObject& object : place_.writer->objects_below(place_.address.path + "/")) {
    if (ours.contains(object.key)) continue;
    refuse_foreign(place_.writer->shown(object.key),
                   "is not one of the files that this output is made of");
  }
}

std::shared_ptr<FileSink> StoreStaging::create(const PlannedFile& file, OutputFile::Use use) {
  if (use != OutputFile::Use::Whole) throw std::logic_error("an object has one writer");
  File made{place_.key_of(file.path), file.count_bytes};
  unless_stopped([&] {
    const auto left = left_uploads_.find(made.key);
    if (left != left_uploads_.end()) {
      made.upload = {made.key, left->second};
      auto sent = place_.writer->parts_of(made.upload);
      if (sent) made.sent = std::move(*sent);
      if (sent) return;
    }
    made.upload = place_.writer->begin(made.key);
  });
  const std::scoped_lock lock(mutex_);
  const auto added = files_.insert_or_assign(file.path, std::move(made)).first;
  return std::make_shared<Sink>(*this, added->second);
}

void StoreStaging::seal() {
  is_sealing_ = true;
  std::vector<File*> files;
  for (auto& [path, file] : files_) files.push_back(&file);
  run_jobs(files.size(), kRequestsAtOnce, [&](size_t number, unsigned) {
    unless_stopped([&] {
      File& file = *files[number];
      place_.writer->complete(file.upload, file.parts);
      file.is_sealed = true;
    });
  });
}

void StoreStaging::hold(const std::string& path, std::string text) {
  held_.emplace_back(path, std::make_shared<const std::string>(std::move(text)));
}

std::shared_ptr<const Folder> StoreStaging::content() const {
  HeldTexts held;
  for (const auto& [path, text] : held_) held[place_.key_of(path)] = text;
  return folder_to_come(seen_anew(place_.shown), std::move(held));
}

// Nobody has changed meanwhile what was sealed and checked.
void StoreStaging::refuse_changed() const {
  std::map<std::string, ListedObject> there = place_.objects();
  for (const auto& [path, file] : files_) {
    const auto object = there.find(file.key);
    if (object == there.end() || !S3Writer::may_be(object->second, file.parts)) {
      throw Error(ErrorCode::IoFailure, {place_.writer->shown(file.key)},
                  "is no longer what was written there");
    }
    there.erase(object);
  }
  // commit() compares those that who led before had put.
  for (const auto& [path, text] : held_) there.erase(place_.key_of(path));
  if (there.empty()) return;
  refuse_foreign(place_.writer->shown(there.begin()->first),
                 "is not one of the files that this output is made of");
}

void StoreStaging::commit() {
  unless_stopped([&] {
    refuse_changed();
    for (const auto& [path, text] : held_) {
      ++put_count_;
      const std::string key = place_.key_of(path);
      if (place_.writer->put_new(key, *text)) continue;
      throw Error(ErrorCode::AlreadyExists, {place_.writer->shown(key)}, "has come meanwhile");
    }
    // Else nothing says that what is there is whole.
    if (!is_marked_) place_.writer->remove(place_.record_key);
  });
  is_committed_ = true;
  try {
    place_.abort_uploads(options_.files);
    if (is_shared()) place_.remove_notes();
    place_.writer->remove(place_.record_key);
  } catch (const Error&) {  // the next run finds all files, and the record
  }
}

// Of what was made, or may have been by a request whose answer was lost.
void StoreStaging::remove_made() const {
  std::vector<std::string> made;
  for (const auto& [path, file] : files_) {
    const auto object =
        file.is_sealed || file.parts.empty() ? std::nullopt : place_.writer->object_at(file.key);
    if (file.is_sealed || (object && S3Writer::may_be(*object, file.parts))) made.push_back(path);
  }
  for (size_t i = 0; i < put_count_; ++i) {
    const auto& [path, text] = held_[i];
    const auto object = place_.writer->object_at(place_.key_of(path));
    const auto bytes = std::as_bytes(std::span(*text));
    const bool was_put = i + 1 < put_count_;
    const bool is_ours =
        object && (was_put || S3Writer::is_same({object->count_bytes, object->etag, ""}, bytes));
    if (is_ours) made.push_back(path);
  }
  if (!made.empty()) place_.remove_objects(made);
}

void StoreStaging::abandon() {
  if (is_leader_) return stop_leading();
  if (!owns_record_) return;
  try {
    place_.writer->stop(false);  // a signal ended attempts; these must be made
    const auto there = place_.writer->text_of(place_.record_key);
    if (!there || there->text != record_) return;  // another run goes on
    remove_made();
    if (options_.resume) return;
    place_.abort_uploads(options_.files);
    place_.writer->remove(place_.record_key);
  } catch (const std::exception&) {  // the record tells the next run what is left
  }
}

bool StoreStaging::clean(const fs::path& destination) {
  const Place place(destination);
  const auto left = place.left();
  if (!left) place.remove_notes();
  if (!left) return false;
  if (!left->is_whole) place.remove_objects(left->record.files);
  place.abort_uploads(left->record.files);
  place.remove_notes();
  place.writer->remove(place.record_key);
  return true;
}

bool StoreStaging::is_left(const fs::path& destination) {
  return Place(destination).left().has_value();
}

bool StoreStaging::finish_published(const fs::path& destination, const std::string& job) {
  const auto left = Place(destination).left();
  return left && left->is_whole && !job.empty() && left->record.job == job && clean(destination);
}

}  // namespace ckpt
