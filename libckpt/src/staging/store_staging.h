// A destination in an object store, in the making.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include <ckpt/folder.h>
#include <ckpt/staging.h>

#include "remote/s3_writer.h"
#include "remote/url_text.h"
#include "staging/destination.h"
#include "staging/job_record.h"

namespace ckpt {

// A destination for which is_in_store() holds. Files that are made by create() are sent as parts,
// which nobody sees; seal() makes objects of them. Small files follow: commit() puts them in the
// order in which they were held, so that the last one is what marks completeness. Without commit()
// the destructor removes all, but for what StagingOptions::resume keeps: parts that were sent. What
// a killed run leaves is told by an object beside the destination, ".NAME.shardwise-partial": "run
// NUMBER", and "marked" where a small file comes last, then a StagingRecord. Who makes it has the
// destination. See docs/object_stores.md.
class StoreStaging final : public Destination {
 public:
  // `options`: without several processes. Throws AlreadyExists (the destination; what another run
  // has begun; what is not ours), Unsupported (force), InvalidArgument (no name), IoFailure.
  // `is_marked`: there will be held files.
  StoreStaging(const std::filesystem::path& destination, StagingOptions options, bool is_marked,
               std::stop_token stop);
  ~StoreStaging() override;

  // How long parts are, but for the last of each file, where the longest file has `count_bytes`.
  // Throws Unsupported where that is longer than an object can be.
  static uint64_t part_bytes_for(uint64_t count_bytes);
  void set_part_bytes(uint64_t count_bytes) { part_bytes_ = count_bytes; }

  std::shared_ptr<FileSink> create(const PlannedFile& file, OutputFile::Use use) override;
  uint64_t kept_bytes() const { return kept_bytes_; }  // that an earlier run had sent

  void seal();
  void hold(const std::string& path, std::string text);
  // What readers will see after commit().
  std::shared_ptr<const Folder> content() const;
  void commit();

  // As Staging has them. The run that a record tells of must not be at work: nobody can see that.
  static bool clean(const std::filesystem::path& destination);
  static bool is_left(const std::filesystem::path& destination);
  // A run of this job ended after it had made all of the destination; tidies up behind it.
  static bool finish_published(const std::filesystem::path& destination, const std::string& job);

 private:
  struct File;
  class Sink;
  struct Left {  // by another run
    StagingRecord record;
    std::string etag;
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
    std::set<std::string> keys() const;  // of what is there
    // Removes objects and parts of the files that are named, the last one first.
    void remove_objects(const std::vector<std::string>& files) const;
    void abort_uploads(const std::vector<std::string>& files) const;
  };

  void enter();
  void take_over();
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
  bool owns_record_ = false, is_committed_ = false;
};

}  // namespace ckpt
