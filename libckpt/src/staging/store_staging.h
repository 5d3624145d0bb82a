// A destination in an object store, in the making.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/folder.h>
#include <ckpt/staging.h>

#include "remote/s3_writer.h"
#include "remote/url_text.h"
#include "staging/destination.h"
#include "staging/job_record.h"

namespace ckpt {

// A file whose parts are all sent, and which is no object yet.
struct SentFile {
  FinishedPiece piece;  // all of the file
  S3Writer::Upload upload;
  S3Writer::Parts parts;
};

// What one of several processes leaves beside a destination when its part is whole: the next one
// that is asked for it, and the one that publishes, go on from there.
struct StorePart {
  std::string job;  // JobIdentity::text()
  std::vector<SentFile> files;

  std::string text() const;
  static std::optional<StorePart> parse(const std::string& text);  // what text() gave
};

// A destination for which is_in_store() holds. Files that are made by create() are sent as parts,
// which nobody sees; seal() makes objects of them. Small files follow: commit() puts them in the
// order in which they were held, so that the last one is what marks completeness. Without commit()
// the destructor removes all, but for what StagingOptions::resume keeps: parts that were sent. What
// a killed run leaves is told by an object beside the destination, ".NAME.shardwise-partial": "run
// NUMBER", and "marked" where a small file comes last, then a StagingRecord. Who makes it has the
// destination; or several processes have it, whose job it names. These leave objects below it, in
// NUMBER/: part-RANK (StorePart), and leader, by who publishes. See docs/object_stores.md.
class StoreStaging final : public Destination {
 public:
  // Throws AlreadyExists (the destination; what another run has begun; what is not ours),
  // Unsupported (force), InvalidArgument (no name), IoFailure. `is_marked`: there will be held
  // files. Of several processes: joins the others.
  StoreStaging(const std::filesystem::path& destination, StagingOptions options, bool is_marked,
               std::stop_token stop);
  ~StoreStaging() override;

  // How long parts are, but for the last of each file, where the longest file has `count_bytes`.
  // Throws Unsupported where that is longer than an object can be.
  static uint64_t part_bytes_for(uint64_t count_bytes);
  void set_part_bytes(uint64_t count_bytes) { part_bytes_ = count_bytes; }

  std::shared_ptr<FileSink> create(const PlannedFile& file, OutputFile::Use use) override;
  uint64_t kept_bytes() const { return kept_bytes_; }  // that an earlier run had sent

  using Pieces = std::vector<FinishedPiece>;
  // Of several processes: what this one had sent in an earlier attempt, where that is its whole
  // part and the store still has it; what it has sent now; and what all have sent, where this one
  // is to publish it. `takes_over`: also from one that has begun to, and is not at work any more.
  std::optional<Pieces> kept_part();
  void leave_part(const Pieces& written);
  std::optional<Pieces> try_lead(bool takes_over);

  void seal();
  void hold(const std::string& path, std::string text);
  // What readers will see after commit().
  std::shared_ptr<const Folder> content() const;
  void commit();

  // As Staging has them. The run that a record tells of must not be at work: nobody can see that.
  static bool clean(const std::filesystem::path& destination);
  static bool is_left(const std::filesystem::path& destination);
  static std::string left_job(const std::filesystem::path& destination);  // empty: none
  // A run of this job ended after it had made all of the destination; tidies up behind it.
  static bool finish_published(const std::filesystem::path& destination, const std::string& job);

 private:
  struct File {
    std::string key;
    uint64_t count_bytes = 0;
    S3Writer::Upload upload = {};
    S3Writer::Parts sent = {};   // by an earlier run
    S3Writer::Parts parts = {};  // of this one
    bool is_sealed = false;
  };
  class Sink;
  struct Left {  // by another run
    StagingRecord record;
    std::string etag, run;  // its number
    bool is_whole = false;  // its destination: the last file says so
  };
  struct Place {
    explicit Place(const std::filesystem::path& destination);
    std::string shown;
    Address address;
    std::string record_key;
    std::shared_ptr<S3Writer> writer;

    std::string key_of(const std::string& path) const;
    bool exists() const;
    std::optional<Left> left() const;
    std::map<std::string, ListedObject> objects() const;  // that are there, by key
    // Removes objects and parts of the files that are named, the last one first.
    void remove_objects(const std::vector<std::string>& files) const;
    void abort_uploads(const std::vector<std::string>& files) const;
    void remove_notes(std::string_view start = {}) const;  // of several processes: "part-"
  };

  [[noreturn]] static void throw_exists(const std::string& shown);
  std::string new_record() const;
  bool is_shared() const { return options_.share.world_size > 1; }
  std::string note_key(std::string_view name) const;
  std::string part_key(uint32_t rank) const;
  void join();
  bool is_of_this_run() const;
  std::optional<std::vector<StorePart>> all_parts() const;
  Pieces adopt(std::vector<StorePart> parts);
  void stop_leading();
  void find_left_uploads();

  void enter();
  void refuse_strangers() const;
  void refuse_changed() const;
  void abandon();
  void remove_made() const;
  // Throws "cancelled" where a stop was requested, whatever failed.
  template <class Call>
  auto unless_stopped(const Call& call) const;

  Place place_;
  StagingOptions options_;
  bool is_marked_;
  std::stop_token stop_;
  std::stop_callback<std::function<void()>> at_stop_;
  uint64_t part_bytes_ = 0, kept_bytes_ = 0;
  std::mutex mutex_;
  std::map<std::string, File> files_;                                             // by path
  std::vector<std::pair<std::string, std::shared_ptr<const std::string>>> held_;  // by path
  size_t put_count_ = 0;                             // of these, also one that may have failed
  std::map<std::string, std::string> left_uploads_;  // by key
  std::string record_;                               // as this run put it
  std::string run_, leader_note_;                    // of several processes
  bool owns_record_ = false, is_leader_ = false, is_sealing_ = false, is_committed_ = false;
};

template <class Call>
auto StoreStaging::unless_stopped(const Call& call) const {
  try {
    if (!stop_.stop_requested()) return call();
  } catch (const Error&) {
    if (!stop_.stop_requested()) throw;  // else that ended attempts, too
  }
  throw Error(ErrorCode::IoFailure, {}, "cancelled");
}

using HeldTexts = std::map<std::string, std::shared_ptr<const std::string>>;  // by key

// A bucket as it will be when these small objects are put into it, too.
std::shared_ptr<const Folder> folder_to_come(std::shared_ptr<const Folder> bucket, HeldTexts held);

}  // namespace ckpt
