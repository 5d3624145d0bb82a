#include <ckpt/convert.h>
#include <ckpt/error.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "execute/check_sources.h"
#include "execute/finish_store.h"
#include "execute/job_record.h"
#include "execute/plan_digest.h"
#include "execute/read_back.h"
#include "execute/source_fingerprint.h"
#include "execute/staging_place.h"
#include "io/directory.h"
#include "io/publish.h"
#include "plan/deal_files.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

void refuse_losses(const std::vector<NotCarried>& losses) {
  if (losses.empty()) return;
  throw Error(
      ErrorCode::Unsupported, {.file = {}, .key = losses[0].what},
      "cannot be carried: " + losses[0].reason,
      losses.size() == 1 ? "" : std::to_string(losses.size()) + " things cannot be carried");
}

void check_request(const ConvertOptions& options, const ConversionSource& source) {
  const Share& share = options.share;
  check_share(share);
  const bool needs_files = options.resume || options.finish || share.world_size > 1;
  if (needs_files && source.checkpoint == nullptr) {
    throw Error(ErrorCode::Unsupported, {},
                "what does not come from files alone is written by one process in one go");
  }
}

std::vector<bool> files_with_payload(const Target& target, const Plan& plan) {
  std::vector<bool> has_payload;
  for (const TargetFile& file : target.files) has_payload.push_back(!file.archives.empty());
  for (const RecordPlan& record : plan.records) has_payload[record.file] = true;
  return has_payload;
}

class TargetWriter {
 public:
  TargetWriter(const Target& target, const ConversionSource& source, const ConvertOptions& options,
               ConvertReport& report)
      : target_(target),
        source_(source),
        options_(options),
        report_(report),
        has_payload_(files_with_payload(target, report.plan)) {
    identity_.processes = options.share.world_size;
    if (source.checkpoint == nullptr) return;
    fingerprint_.emplace(*source.checkpoint);
    identity_.tool = SHARDWISE_VERSION;
    identity_.plan = hex(plan_digest(target, report.plan));
    identity_.source = fingerprint_->digest();
  }

  void write(const fs::path& destination) {
    std::optional<Staging> entered = enter(destination);
    if (!entered) return;
    Staging& staging = *entered;
    write_part(staging);
    report_.outcome = Outcome::PartWritten;
    while (const auto written = all_parts(staging)) {
      if (!staging.try_lead()) return;
      return publish(staging, *written);
    }
  }

  void finish(const fs::path& destination) {
    // However many processes there were.
    const auto job = JobIdentity::parse(text_of(StagingPlace(destination).job).value_or(""));
    if (job && job->processes <= kWorldSizeMax) identity_.processes = job->processes;
    Staging staging = Staging::attach(destination, staging_options());
    const auto written = all_parts(staging);
    if (!written) {
      throw Error(ErrorCode::NotFound, {staging.notes().string()},
                  "the parts of " + std::to_string(missing_) + " of " +
                      std::to_string(identity_.processes) + " processes are missing");
    }
    if (source_.before_publishing) source_.before_publishing();
    publish(staging, *written);
  }

 private:
  using Mask = std::vector<bool>;
  const Plan& plan() const { return report_.plan; }

  // None where the processes of this very job have published before.
  std::optional<Staging> enter(const fs::path& destination) {
    try {
      return Staging::create(destination, staging_options());
    } catch (const Error& error) {
      const bool may_be_late = error.code() == ErrorCode::AlreadyExists &&
                               options_.share.world_size > 1 && !options_.force;
      if (!may_be_late || !is_published(destination)) throw;
      report_.outcome = Outcome::AlreadyPublished;
      return std::nullopt;
    }
  }

  // Not claimed of what the mark does not know: whether files were compressed, hashed or proven.
  bool is_published(const fs::path& destination) const {
    if (options_.zstd_level || options_.integrity || options_.strict) return false;
    if (!Staging::is_published(destination, identity_.text())) return false;
    for (const LinkedFile& link : source_.links) {
      if (kind_of_entry(destination / link.path) != EntryKind::File) return false;
    }
    return std::ranges::all_of(plan().files, [&](const PlannedFile& file) {
      const auto state = state_of_entry(file.path.empty() ? destination : destination / file.path);
      return state && state->count_bytes == file.count_bytes;
    });
  }

  StagingOptions staging_options() const {
    StagingOptions options;
    options.force = options_.force;
    options.single_file = target_.files.size() == 1 && target_.files[0].path.empty();
    options.source = source_.path.string();
    if (source_.checkpoint != nullptr) options.job = identity_.text();
    options.resume = options_.resume;
    options.share = options_.share;
    return options;
  }

  fs::path path_of(const Staging& staging, size_t file) const {
    const std::string& path = plan().files[file].path;
    return path.empty() ? staging.folder() : staging.folder() / path;
  }
  static fs::path record_path(const Staging& staging, uint32_t rank) {
    return staging.notes() / ("part-" + std::to_string(rank));
  }

  // The files with payload that are this process's.
  Mask own_files() const {
    const std::vector<uint32_t> owner = deal_files(plan(), options_.share.world_size);
    Mask own = has_payload_;
    for (size_t f = 0; f < own.size(); ++f) own[f] = own[f] && owner[f] == options_.share.rank;
    return own;
  }

  void write_part(Staging& staging) {
    Mask files = own_files();
    const std::vector<FinishedFile> kept = keep_finished(staging, files);
    PartRecordWriter record(record_path(staging, options_.share.rank), identity_, kept);
    std::vector<FinishedFile> written = write_files(staging, files, &record);
    written.insert(written.end(), kept.begin(), kept.end());
    if (fingerprint_) fingerprint_->check_unchanged();
    verify(staging, written);
    if (source_.before_publishing) source_.before_publishing();
    record.complete();
  }

  // What an earlier attempt has finished is read, and taken out of `files` where it is sound.
  // Removes what is left of the others.
  std::vector<FinishedFile> keep_finished(const Staging& staging, Mask& files) {
    std::map<std::string, size_t> wanted;
    for (size_t f = 0; f < files.size(); ++f) {
      if (files[f]) wanted.emplace(plan().files[f].path, f);
    }
    std::vector<FinishedFile> candidates;
    for (FinishedFile& file : recorded(staging)) {
      if (wanted.contains(file.path)) candidates.push_back(std::move(file));
    }
    const auto is_sound = are_as_written(staging.folder(), candidates, {false, options_.execute});
    std::vector<FinishedFile> kept;
    Mask kept_files(files.size());
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!is_sound[i]) continue;
      files[wanted.at(candidates[i].path)] = false;
      kept_files[wanted.at(candidates[i].path)] = true;
      report_.kept_bytes += candidates[i].count_bytes;
      kept.push_back(std::move(candidates[i]));
    }
    for (size_t f = 0; f < files.size(); ++f) {
      if (files[f]) remove_tree(path_of(staging, f));
    }
    if (!kept.empty()) check_sources(target_, kept_files, *source_.checkpoint, options_.execute);
    return kept;
  }

  std::vector<FinishedFile> recorded(const Staging& staging) const {
    if (!options_.resume && options_.share.world_size == 1) return {};
    auto record = read_part_record(record_path(staging, options_.share.rank));
    if (!record || record->job != identity_.text()) return {};
    return std::move(record->files);
  }

  std::vector<FinishedFile> write_files(Staging& staging, Mask files, PartRecordWriter* record) {
    std::mutex mutex;
    std::vector<FinishedFile> written;
    if (std::ranges::find(files, true) == files.end()) return written;
    ExecuteOptions options = options_.execute;
    options.files = std::move(files);
    if (record == nullptr) {  // markers are small: no budget may refuse them after all the payload
      options.threads = 1;
      options.process_bytes_max = 0;
    }
    options.on_file = [&](const WrittenFile& file) {
      FinishedFile finished{plan().files[file.file].path, file.count_bytes, file.crc32};
      sync_file(path_of(staging, file.file));
      if (record != nullptr) record->add(finished);
      const std::scoped_lock lock(mutex);
      written.push_back(std::move(finished));
    };
    const ExecuteStats stats = execute(target_, plan(), source_.payloads, staging, options);
    report_.stats.read_bytes += stats.read_bytes;
    report_.stats.written_bytes += stats.written_bytes;
    report_.stats.file_count += stats.file_count;
    return written;
  }

  void verify(const Staging& staging, const std::vector<FinishedFile>& written) {
    if (!options_.verify) return;
    const auto is_right = are_as_written(staging.folder(), written, {true, options_.execute});
    for (size_t i = 0; i < written.size(); ++i) {
      report_.verified_bytes += written[i].count_bytes;
      if (is_right[i]) continue;
      throw Error(ErrorCode::IoFailure, {written[i].path},
                  "what the device gives back is not what was written",
                  "the storage is not to be trusted");
    }
  }

  // What all processes have written; nullopt while parts are missing. Throws AlreadyExists where
  // one belongs to another job.
  std::optional<std::vector<FinishedFile>> all_parts(const Staging& staging) {
    std::vector<FinishedFile> all;
    missing_ = 0;
    for (uint32_t rank = 0; rank < identity_.processes; ++rank) {
      const fs::path path = record_path(staging, rank);
      auto record = read_part_record(path);
      if (record && record->job != identity_.text()) {
        throw Error(ErrorCode::AlreadyExists, {path.string()}, "is a part of another job");
      }
      if (!record || !record->is_complete) {
        ++missing_;
        continue;
      }
      std::ranges::move(record->files, std::back_inserter(all));
    }
    if (missing_ != 0) return std::nullopt;
    return all;
  }

  void publish(Staging& staging, const std::vector<FinishedFile>& written) {
    check_payload(staging, written);
    remove_strangers(staging);
    for (const LinkedFile& link : source_.links) {
      const fs::path path = staging.folder() / link.path;
      make_folders(path.parent_path());
      link_file(link.source, path);
    }
    Mask markers = has_payload_;
    markers.flip();
    verify(staging, write_files(staging, std::move(markers), nullptr));
    finish_store(staging.folder(), options_, report_.plan);
    if (fingerprint_) fingerprint_->check_unchanged();
    staging.commit();
    report_.outcome = Outcome::Published;
  }

  // Nothing is published that is not planned, whatever a staging folder was left with.
  void remove_strangers(const Staging& staging) const {
    if (kind_of_entry(staging.folder()) != EntryKind::Folder) return;
    std::set<fs::path> planned{staging.folder()};
    for (size_t f = 0; f < has_payload_.size(); ++f) {
      if (!has_payload_[f]) continue;
      for (fs::path path = path_of(staging, f); planned.insert(path).second;) {
        path = path.parent_path();
      }
    }
    const FolderTree tree = walk(staging.folder());
    for (const auto& paths : {tree.files, tree.folders}) {
      for (const fs::path& path : paths) {
        if (!planned.contains(path)) remove_tree(path);
      }
    }
  }

  // Every file of the plan is recorded once, and there in its length.
  void check_payload(const Staging& staging, const std::vector<FinishedFile>& written) const {
    std::map<std::string, uint64_t> bytes_of;
    for (const FinishedFile& file : written) bytes_of.emplace(file.path, file.count_bytes);
    for (size_t f = 0; f < has_payload_.size(); ++f) {
      if (!has_payload_[f]) continue;
      const auto found = bytes_of.find(plan().files[f].path);
      const auto state = state_of_entry(path_of(staging, f));
      if (found != bytes_of.end() && found->second == plan().files[f].count_bytes && state &&
          state->count_bytes == found->second) {
        continue;
      }
      throw Error(ErrorCode::IoFailure, {path_of(staging, f).string()},
                  "is not what the parts say was written");
    }
  }

  const Target& target_;
  const ConversionSource& source_;
  const ConvertOptions& options_;
  ConvertReport& report_;
  const Mask has_payload_;
  std::optional<SourceFingerprint> fingerprint_;
  JobIdentity identity_;
  uint32_t missing_ = 0;  // parts, when all_parts() looked
};

}  // namespace

ConvertReport write_target(Target target, const ConversionSource& source,
                           const fs::path& destination, const ConvertOptions& options) {
  check_request(options, source);
  check_store_options(target, options);
  if (options.strict) refuse_losses(target.not_carried);
  ConvertReport report;
  report.target_format = target.format;
  report.plan = make_plan(target);
  if (options.dry_run) {
    report.peak_memory_bytes = expected_peak_bytes(options.execute, report.plan);
  } else {
    TargetWriter writer(target, source, options, report);
    options.finish ? writer.finish(destination) : writer.write(destination);
  }
  report.not_carried = std::move(target.not_carried);
  report.warnings = std::move(target.warnings);
  if (options.zstd_level && options.dry_run) {
    report.warnings.emplace_back("the sizes are those before zstd");
  }
  return report;
}

}  // namespace ckpt
