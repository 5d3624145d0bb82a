#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include <ckpt/error.h>
#include <ckpt/files_beside.h>
#include <ckpt/plain_target.h>
#include <ckpt/target.h>
#include <ckpt/verify.h>
#include <ckpt/write_target.h>

#include "format/foreign/foreign.h"
#include "io/directory.h"
#include "io/publish.h"
#include "publish/finish_store.h"
#include "publish/piece_writer.h"
#include "publish/store_writer.h"
#include "remote/remote_folder.h"
#include "staging/staging_holder.h"
#include "staging/store_staging.h"
#include "work/workers.h"
#include "write/read_back.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

struct Suffix {
  const char* text;
  const char* of;  // what such a name is given to
  bool may_be_torch_file;
};
constexpr Suffix kSuffixes[] = {
    {".pt", "a torch.save file", true},
    {".pth", "a torch.save file", true},
    {".bin", "a torch.save file", true},
    {".safetensors", "a safetensors file", false},
    {".json", "a JSON file", false},
    {".distcp", "a part of a torch_dist (DCP) checkpoint", false},
};

[[noreturn]] void refuse(const fs::path& destination, const std::string& found,
                         const std::string& written, std::string hint) {
  throw Error(ErrorCode::InvalidArgument, {destination.string()},
              "is the name of " + found + "; " + written + " would be written there",
              std::move(hint));
}

bool is_suffix(const std::string& text) {
  return text == ".index" ||
         std::ranges::find(kSuffixes, text, &Suffix::text) != std::end(kSuffixes);
}

// out/model of out/model.safetensors.index.json.
fs::path without_suffixes(fs::path path) {
  while (is_suffix(path.extension().string())) path.replace_extension();
  return path;
}

// Whether the target is a single file, whatever its name.
bool is_single_file(const Target& target) {
  return target.files.size() == 1 && target.files[0].path.empty();
}

std::string what_is_written(const Target& target) {
  const std::string format(name(target.format));
  if (!is_single_file(target)) return "a folder (" + format + ")";
  return target.format == Format::Torch ? "a torch.save file" : "a " + format + " file";
}

// Throws InvalidArgument where the name of a destination promises something else than what would be
// written there:
//
//   written                  refused names
//   a torch.save file        FOLDER/, .safetensors, .json, .distcp
//   a .safetensors file      FOLDER/
//   a folder of any format   .pt, .pth, .bin, .safetensors, .json, .distcp
//
// Folders called .ckpt are common: PyTorch Lightning writes them.
void check_destination_name(const Target& target, const fs::path& destination) {
  const bool is_file = is_single_file(target);
  const std::string written = what_is_written(target);
  if (is_file && !destination.has_filename()) {
    refuse(destination, "a folder", written,
           "name the file: " +
               escaped((destination /
                        (target.format == Format::Torch ? "model.pt" : "model.safetensors"))
                           .string()));
  }
  const std::string suffix = destination.extension().string();
  const auto found = std::ranges::find(kSuffixes, suffix, &Suffix::text);
  if (found == std::end(kSuffixes)) return;
  const fs::path stem = without_suffixes(destination);
  if (!is_file) {
    refuse(destination, found->of, written, "give a folder's name: " + escaped(stem.string()));
  }
  if (target.format == Format::Torch && !found->may_be_torch_file) {
    refuse(destination, found->of, written,
           "name it " + escaped(stem.string()) + ".pt, or choose another --to");
  }
}

constexpr std::chrono::milliseconds kPoll(20);

void refuse_losses(const std::vector<NotCarried>& losses) {
  if (losses.empty()) return;
  const std::string others =
      losses.size() == 1 ? "it" : "this and " + std::to_string(losses.size() - 1) + " more";
  throw Error(
      ErrorCode::Unsupported, {.file = {}, .key = losses[0].what},
      (losses[0].is_changed ? "would be changed: " : "cannot be carried: ") + losses[0].reason,
      "--strict refuses any loss or change; without it the conversion goes on and lists " + others);
}

bool comes_from_files(const ConversionSource& source) {
  return source.checkpoint != nullptr && !source.is_made_up;
}

void check_request(const ConvertOptions& options, const ConversionSource& source) {
  const Share& share = options.share;
  check_share(share);
  const bool needs_files = options.resume || options.finish || share.world_size > 1;
  if (needs_files && !comes_from_files(source)) {
    throw Error(ErrorCode::Unsupported, {},
                "a result that is not made from files alone cannot be shared or resumed");
  }
}

void check_destination(const fs::path& destination, const Target& target,
                       const ConversionSource& source, const ConvertOptions& options) {
  if (is_in_store(destination)) {
    refuse_for_store(source, options);
    return check_destination_name(target, destination);
  }
  refuse_address(destination, "write it on this machine first, then copy it there");
  if (kind_of_entry(destination) == EntryKind::Other) {
    throw Error(ErrorCode::InvalidArgument, {destination.string()},
                "is neither a file nor a folder, and is never replaced");
  }
  const StagingPlace place(destination);
  place.refuse_overlap(source.path);
  if (source.checkpoint != nullptr) place.refuse_files(source.checkpoint->files());
  check_destination_name(target, destination);
}

// Whether this process publishes: all parts are written, and nobody else does. Waits while one that
// has been started again looks at its part, and one that may be publishing on another machine.
bool leads(Staging& staging, const PartRecords& records, const std::stop_token& stop) {
  while (records.whole_parts().missing == 0) {
    if (stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
    const Staging::Lead lead = staging.try_lead();
    if (lead != Staging::Lead::OthersAreAtWork) return lead == Staging::Lead::Yes;
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

class TargetWriter {
 public:
  TargetWriter(Target& target, const ConversionSource& source, const ConvertOptions& options,
               ConvertReport& report)
      : target_(target), source_(source), options_(options), report_(report) {
    if (source.checkpoint != nullptr) fingerprint_.emplace(*source.checkpoint);
  }

  void write(const fs::path& destination) {
    if (is_in_store(destination)) return write_objects(destination, options_);
    const WriteJob job(target_, plan(), fingerprint_, options_);
    std::optional<Staging> staging = enter(destination, job);
    if (!staging) return;
    const WriteAttempt attempt{run_of(job, options_), *staging};
    PieceWriter writer(attempt);
    write_part(attempt, writer);
    report_.outcome = Outcome::PartWritten;
    staging->leave_part();
    if (!leads(*staging, attempt.records(), options_.execute.stop)) return;
    const PartRecords::Parts parts = attempt.records().whole_parts();  // nobody changes them now
    if (parts.missing == 0) publish(attempt, writer, parts.pieces, destination);
  }

  void finish(const fs::path& destination) {
    ConvertOptions options = options_;
    if (is_in_store(destination)) {
      options.share.world_size = process_count_of(StoreStaging::left_job(destination));
      return write_objects(destination, options);
    }
    const StagingPlace place(destination);
    const std::string left = StagingHolder::left_job(place);
    options.share.world_size = process_count_of(left.empty() ? attached_text(place.path()) : left);
    const WriteJob job(target_, plan(), fingerprint_, options);
    StagingHolder::tidy(place);
    const bool is_left = !StagingHolder::left_job(place).empty();
    if (!is_left && !options_.force && is_published(destination, job)) {
      report_.outcome = Outcome::AlreadyPublished;
      return;
    }
    Staging staging = Staging::attach(destination, staging_options(job));
    const WriteAttempt attempt{run_of(job, options_), staging};
    const PartRecords::Parts parts = attempt.records().whole_parts();
    if (parts.missing != 0) {
      throw Error(ErrorCode::NotFound, {staging.notes().path().string()},
                  "the parts of " + std::to_string(parts.missing) + " of " +
                      std::to_string(job.identity.processes) + " processes are missing");
    }
    if (source_.before_publishing) source_.before_publishing();
    PieceWriter writer(attempt);
    publish(attempt, writer, parts.pieces, destination);
  }

 private:
  const Plan& plan() const { return report_.plan; }

  // An object has one writer.
  void write_objects(const fs::path& destination, ConvertOptions options) {
    options.share.piece_bytes_min = std::numeric_limits<uint64_t>::max();
    const WriteJob job(target_, plan(), fingerprint_, options);
    write_into_store(run_of(job, options), destination, staging_options(job));
  }

  JobRun run_of(const WriteJob& job, const ConvertOptions& options) {
    return {job, target_, source_, fingerprint_, options, report_};
  }

  // What is wrong with a single file is told by the name that it was to have.
  void publish(const WriteAttempt& attempt, PieceWriter& writer,
               const std::vector<FinishedPiece>& parts, const fs::path& destination) const {
    try {
      publish_parts(attempt, writer, parts);
    } catch (const Error& error) {
      const Where& where = error.where();
      if (where.file != attempt.staging.folder().filename() || is_of_source(where.file)) throw;
      throw Error(error.code(), {destination.filename().string(), where.offset_bytes, where.key},
                  error.problem(), error.hint());
    }
  }

  bool is_of_source(const std::string& shown) const {
    const Checkpoint* const source = source_.checkpoint;
    return source != nullptr &&
           std::ranges::any_of(source->catalog().files, [&](const FileEntry& file) {
             return source->shown_name(file.path) == shown;
           });
  }

  // As many as have left parts, or have published, whatever --world-size says.
  uint32_t process_count_of(const std::string& left) const {
    const auto job = JobIdentity::parse(left);
    return job && job->processes <= kWorldSizeMax ? job->processes : options_.share.world_size;
  }

  // None where this very job has been published before.
  std::optional<Staging> enter(const fs::path& destination, const WriteJob& job) {
    try {
      return Staging::create(destination, staging_options(job));
    } catch (const Error& error) {
      const bool is_continued = options_.share.world_size > 1 || options_.resume;
      const bool may_be_late =
          error.code() == ErrorCode::AlreadyExists && is_continued && !options_.force;
      if (!may_be_late || !is_published(destination, job)) throw;
      report_.outcome = Outcome::AlreadyPublished;
      return std::nullopt;
    }
  }

  // Not claimed of what the mark does not know: whether files were compressed, hashed or proven.
  bool is_published(const fs::path& destination, const WriteJob& job) const {
    if (options_.zstd_level || options_.integrity || options_.strict) return false;
    if (!Staging::is_published(destination, job.identity.text())) return false;
    for (const LinkedFile& link : source_.links) {
      if (kind_of_entry(destination / link.path) != EntryKind::File) return false;
    }
    return std::ranges::all_of(plan().files, [&](const PlannedFile& file) {
      const auto state = state_of_entry(output_path(destination, file.path));
      return state && state->count_bytes == file.count_bytes;
    });
  }

  StagingOptions staging_options(const WriteJob& job) const {
    StagingOptions options;
    options.force = options_.force;
    options.single_file = is_single_file(target_);
    options.source = source_.path.string();
    if (comes_from_files(source_)) options.job = job.identity.text();
    options.files = files_of_output(plan(), source_, options_);
    options.resume = options_.resume;
    options.share = options_.share;
    options.share.world_size = job.identity.processes;
    return options;
  }

  Target& target_;
  const ConversionSource& source_;
  const ConvertOptions& options_;
  ConvertReport& report_;
  std::optional<SourceFingerprint> fingerprint_;
};

// What only who has written it knows.
void list_overflows(const Share& share, ConvertReport& report) {
  for (const auto& [key, count] : report.stats.overflows) {
    report.not_carried.push_back(
        {key, std::to_string(count) + (count == 1 ? " value is" : " values are") +
                  " too large for its new type and became infinite" +
                  (share.world_size > 1 ? ", in this process's part" : "")});
  }
}

// What the plan does not show.
void add_warnings_of_dry_run(const fs::path& destination, const ConvertOptions& options,
                             ConvertReport& report) {
  std::vector<std::string>& warnings = report.warnings;
  if (options.zstd_level) warnings.emplace_back("sizes are before zstd compression");
  if (options.integrity) warnings.emplace_back("integrity.json is written in addition");
  const bool is_remote = is_in_store(destination);
  const EntryKind kind = is_remote ? kind_at(destination) : kind_of_entry(destination);
  if (!options.force && kind != EntryKind::Absent) {
    warnings.emplace_back("the destination exists: nothing would be written" +
                          std::string(is_remote ? "" : " without --force"));
  }
  if (is_remote) return;
  // A run that is continued finds a part of its bytes there.
  const fs::path folder = StagingPlace(destination).path().parent_path();
  const auto room_bytes = options.resume ? std::nullopt : free_bytes(folder);
  if (room_bytes && report.plan.total_bytes > *room_bytes) {
    warnings.push_back(std::to_string(report.plan.total_bytes) + " bytes are needed, " +
                       std::to_string(*room_bytes) + " are free in " + escaped(folder.string()) +
                       ": the run would fail (exit code 5)");
  }
}

}  // namespace

ConvertReport write_target(Target target, const ConversionSource& source,
                           const fs::path& destination, const ConvertOptions& options) {
  check_request(options, source);
  check_store_options(target, options);
  check_destination(destination, target, source, options);
  if (options.strict) refuse_losses(target.not_carried);
  ConvertReport report;
  report.target_format = target.format;
  report.plan = make_plan(target);
  if (options.dry_run) {
    report.peak_memory_bytes = expected_peak_bytes(
        target, report.plan,
        is_in_store(destination) ? options_for_store(report.plan, options.execute)
                                 : options.execute);
  } else {
    TargetWriter writer(target, source, options, report);
    options.finish ? writer.finish(destination) : writer.write(destination);
  }
  report.not_carried = std::move(target.not_carried);
  list_overflows(options.share, report);
  report.casts = std::move(target.casts);
  report.left_out_count = target.left_out_count;
  report.warnings = std::move(target.warnings);
  if (options.dry_run) add_warnings_of_dry_run(destination, options, report);
  return report;
}

bool is_safetensors_folder(const std::filesystem::path& destination) {
  return destination.extension() != ".safetensors";
}

ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                      const ConvertOptions& options) {
  const Checkpoint opened =
      Checkpoint::open(source, {options.iteration, options.limits, options.convention});
  const Format format = options.format.value_or(opened.catalog().format);
  const TargetSpec spec{format, is_safetensors_folder(destination), options.keys, options.types};
  Target target = make_target(opened, spec);
  for (NotCarried& file : files_not_carried(opened)) target.not_carried.push_back(std::move(file));
  ConversionSource from{opened, source, &opened};
  const std::vector<NotCarried> not_carried = target.not_carried;
  from.check_result = [&](const WrittenResult& written) {
    if (options.verify) {
      VerifyOptions checks;
      checks.execution = options.execute;
      refuse_damage(verify(open_result(written, {std::nullopt, opened.limits()}), checks));
    }
    return check_plain_result(opened, spec, written,
                              {not_carried, options.verify, options.execute});
  };
  ConvertReport report = write_target(std::move(target), from, destination, options);
  report.source_format = opened.catalog().format;
  return report;
}

}  // namespace ckpt
