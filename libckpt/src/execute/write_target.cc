#include <ckpt/convert.h>
#include <ckpt/error.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "execute/check_sources.h"
#include "execute/finish_store.h"
#include "execute/output_files.h"
#include "execute/part_records.h"
#include "execute/plan_digest.h"
#include "execute/read_back.h"
#include "execute/source_fingerprint.h"
#include "execute/staging_place.h"
#include "io/directory.h"
#include "io/publish.h"
#include "plan/deal_by_bytes.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::milliseconds kPoll(20);

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

// What is written in which order: payload by the processes, the rest by the one who publishes.
struct Pieces {
  std::vector<Piece> payload;  // of files with archives
  std::vector<Piece> last;     // what closes such files, and the markers: all other files
};

// `may_cut`: not where finish_store() replaces files, which nobody must write into after that.
Pieces make_pieces(const Target& target, const Plan& plan, const Share& share, bool may_cut) {
  Pieces pieces;
  for (const Piece& piece : share.world_size > 1 && may_cut
                                ? cut_into_pieces(target, plan, share.piece_bytes_min)
                                : whole_files(plan)) {
    const bool is_payload = !piece.closes && !target.files[piece.file].archives.empty();
    (is_payload ? pieces.payload : pieces.last).push_back(piece);
  }
  return pieces;
}

class TargetWriter {
 public:
  TargetWriter(const Target& target, const ConversionSource& source, const ConvertOptions& options,
               ConvertReport& report)
      : target_(target),
        source_(source),
        options_(options),
        report_(report),
        share_(options.share) {
    if (source.checkpoint != nullptr) {
      fingerprint_.emplace(*source.checkpoint);
      identity_.tool = SHARDWISE_VERSION;
      identity_.source = fingerprint_->digest();
    }
    set_processes(options.share.world_size);
  }

  void write(const fs::path& destination) {
    std::optional<Staging> entered = enter(destination);
    if (!entered) return;
    Staging& staging = *entered;
    write_part(staging);
    report_.outcome = Outcome::PartWritten;
    staging.leave_part();
    for (;;) {
      if (records_of(staging).whole_parts().missing != 0) return;
      const Staging::Lead lead = staging.try_lead();
      if (lead == Staging::Lead::No) return;
      if (lead == Staging::Lead::Yes) break;
      std::this_thread::sleep_for(kPoll);  // who has been started again looks at its part
    }
    const PartRecords::Parts parts = records_of(staging).whole_parts();  // nobody changes them now
    if (parts.missing == 0) publish(staging, parts.pieces);
  }

  void finish(const fs::path& destination) {
    // However many processes there were.
    const auto job = JobIdentity::parse(text_of(StagingPlace(destination).job).value_or(""));
    if (job && job->processes <= kWorldSizeMax) set_processes(job->processes);
    Staging staging = Staging::attach(destination, staging_options());
    const PartRecords::Parts parts = records_of(staging).whole_parts();
    if (parts.missing != 0) {
      throw Error(ErrorCode::NotFound, {staging.notes().string()},
                  "the parts of " + std::to_string(parts.missing) + " of " +
                      std::to_string(identity_.processes) + " processes are missing");
    }
    if (source_.before_publishing) source_.before_publishing();
    publish(staging, parts.pieces);
  }

 private:
  const Plan& plan() const { return report_.plan; }

  void set_processes(uint32_t count) {
    share_.world_size = identity_.processes = count;
    pieces_ = make_pieces(target_, plan(), share_, !options_.zstd_level);
    const bool are_asked_for = std::ranges::any_of(pieces_.last, &Piece::closes);
    record_crcs_.assign(are_asked_for ? plan().records.size() : 0, 0);
    if (!fingerprint_) return;
    identity_.plan = hex(plan_digest(target_, plan(), pieces_.payload)) + store_options_text();
  }

  // What changes the files after the plan, equal for all processes.
  std::string store_options_text() const {
    return (options_.zstd_level ? " zstd-" + std::to_string(*options_.zstd_level) : "") +
           (options_.integrity ? " integrity" : "");
  }

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
      const auto state = state_of_entry(output_path(destination, file.path));
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
    options.share = share_;
    return options;
  }

  const std::string& name_of(const Piece& piece) const { return plan().files[piece.file].path; }
  fs::path path_of(const Staging& staging, const Piece& piece) const {
    return output_path(staging.folder(), name_of(piece));
  }
  bool is_whole(const Piece& piece) const {
    return piece.bytes.count_bytes == plan().files[piece.file].count_bytes;
  }
  PartRecords records_of(const Staging& staging) const { return {staging.notes(), identity_}; }

  std::vector<Piece> own_pieces() const {
    std::vector<uint64_t> sizes;
    for (const Piece& piece : pieces_.payload) sizes.push_back(piece.bytes.count_bytes);
    const std::vector<uint32_t> owner = deal_by_bytes(sizes, options_.share.world_size);
    std::vector<Piece> own;
    for (size_t p = 0; p < owner.size(); ++p) {
      if (owner[p] == options_.share.rank) own.push_back(pieces_.payload[p]);
    }
    return own;
  }

  void write_part(Staging& staging) {
    std::vector<Piece> pieces = own_pieces();
    refuse_lost_files(staging);
    const std::vector<FinishedPiece> kept = keep_finished(staging, pieces);
    PartRecordWriter record(records_of(staging).path_of(options_.share.rank), identity_, kept);
    std::vector<FinishedPiece> written = write_pieces(staging, std::move(pieces), &record);
    written.insert(written.end(), kept.begin(), kept.end());
    if (fingerprint_) fingerprint_->check_unchanged();
    verify(staging, written);
    if (source_.before_publishing) source_.before_publishing();
    record.complete();
  }

  void refuse_lost_files(const Staging& staging) const {
    std::vector<std::string> absent;
    for (const Piece& piece : pieces_.payload) {
      const bool is_listed = !absent.empty() && absent.back() == name_of(piece);
      if (is_whole(piece) || is_listed) continue;
      const bool is_there = kind_of_entry(path_of(staging, piece)) == EntryKind::File;
      if (!is_there) absent.push_back(name_of(piece));
    }
    records_of(staging).refuse_lost(absent, staging.folder());
  }

  // What an earlier attempt has finished is read, and taken out of `pieces` where it is sound.
  // Removes what is left of the others, where they are files of their own.
  std::vector<FinishedPiece> keep_finished(const Staging& staging, std::vector<Piece>& pieces) {
    std::map<std::pair<std::string, uint64_t>, FinishedPiece> sound;
    const bool may_continue = options_.resume || options_.share.world_size > 1;
    std::vector<FinishedPiece> candidates;
    if (may_continue) candidates = records_of(staging).finished_by(options_.share.rank);
    const auto is_sound = are_as_written(staging.folder(), candidates, {false, options_.execute});
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!is_sound[i]) continue;
      sound[{candidates[i].path, candidates[i].bytes.offset_bytes}] = std::move(candidates[i]);
    }
    std::vector<FinishedPiece> kept;
    std::vector<Piece> kept_pieces, missing;
    for (const Piece& piece : pieces) {
      const auto found = sound.find({name_of(piece), piece.bytes.offset_bytes});
      if (found != sound.end() && is_complete(staging, piece, found->second)) {
        report_.kept_bytes += piece.bytes.count_bytes;
        kept.push_back(std::move(found->second));
        kept_pieces.push_back(piece);
      } else {
        const EntryKind kind = kind_of_entry(path_of(staging, piece));
        const bool is_in_the_way = kind != EntryKind::File && kind != EntryKind::Absent;
        if (is_whole(piece) || is_in_the_way) remove_tree(path_of(staging, piece));
        missing.push_back(piece);
      }
    }
    pieces = std::move(missing);
    if (!kept.empty()) {
      check_sources(target_, plan(), kept_pieces, *source_.checkpoint, options_.execute);
    }
    return kept;
  }

  bool is_complete(const Staging& staging, const Piece& piece, const FinishedPiece& found) const {
    const auto state = state_of_entry(path_of(staging, piece));
    const uint64_t file_bytes = plan().files[piece.file].count_bytes;
    return found.bytes == piece.bytes && state &&
           (is_whole(piece) ? state->count_bytes == file_bytes
                            : state->count_bytes >= piece.bytes.end_bytes() &&
                                  state->count_bytes < file_bytes + Piece::kBlockBytes);
  }

  std::vector<FinishedPiece> write_pieces(Staging& staging, std::vector<Piece> pieces,
                                          PartRecordWriter* record) {
    std::mutex mutex;
    std::vector<FinishedPiece> written;
    if (pieces.empty()) return written;
    ExecuteOptions options = options_.execute;
    options.pieces = std::move(pieces);
    options.record_crcs = record_crcs_;
    if (record == nullptr) {  // what is last is small: no budget may refuse it after the payload
      options.threads = 1;
      options.process_bytes_max = 0;
    }
    options.on_piece = [&](const WrittenPiece& written_piece) {
      FinishedPiece finished = finished_piece(written_piece);
      sync_file(path_of(staging, written_piece.piece));
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

  FinishedPiece finished_piece(const WrittenPiece& written) const {
    const auto& [piece, crc] = written;
    FinishedPiece finished{name_of(piece), piece.bytes, crc};
    if (!record_crcs_.empty() && !is_whole(piece)) {
      finished.record_crcs.assign(record_crcs_.begin() + static_cast<ptrdiff_t>(piece.first_record),
                                  record_crcs_.begin() + static_cast<ptrdiff_t>(piece.end_record));
    }
    return finished;
  }

  void verify(const Staging& staging, const std::vector<FinishedPiece>& written) {
    if (!options_.verify) return;
    const auto is_right = are_as_written(staging.folder(), written, {true, options_.execute});
    for (size_t i = 0; i < written.size(); ++i) {
      report_.verified_bytes += written[i].bytes.count_bytes;
      if (is_right[i]) continue;
      throw Error(ErrorCode::IoFailure, {written[i].path},
                  "what the device gives back is not what was written",
                  "the storage is not to be trusted");
    }
  }

  void publish(Staging& staging, const std::vector<FinishedPiece>& written) {
    take_payload(staging, written);
    remove_strangers(staging);
    for (const LinkedFile& link : source_.links) {
      const fs::path path = staging.folder() / link.path;
      make_folders(path.parent_path());
      link_file(link.source, path);
    }
    verify(staging, write_pieces(staging, pieces_.last, nullptr));
    finish_store(staging.folder(), options_, report_.plan);
    if (fingerprint_) fingerprint_->check_unchanged();
    staging.commit();
    report_.outcome = Outcome::Published;
  }

  // Nothing is published that is not planned, whatever a staging folder was left with.
  void remove_strangers(const Staging& staging) const {
    if (kind_of_entry(staging.folder()) != EntryKind::Folder) return;
    std::set<fs::path> planned{staging.folder()};
    for (const Piece& piece : pieces_.payload) {
      for (fs::path path = path_of(staging, piece); planned.insert(path).second;) {
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

  // Every piece is recorded, and there; takes down the checksums of its records.
  void take_payload(const Staging& staging, const std::vector<FinishedPiece>& written) {
    std::map<std::pair<std::string, uint64_t>, const FinishedPiece*> recorded;
    for (const FinishedPiece& piece : written) {
      recorded[{piece.path, piece.bytes.offset_bytes}] = &piece;
    }
    for (const Piece& piece : pieces_.payload) {
      const auto found = recorded.find({name_of(piece), piece.bytes.offset_bytes});
      if (found == recorded.end() || !is_complete(staging, piece, *found->second) ||
          !take_record_crcs(piece, found->second->record_crcs)) {
        throw Error(ErrorCode::IoFailure, {path_of(staging, piece).string()},
                    "is not what the parts say was written");
      }
    }
  }

  bool take_record_crcs(const Piece& piece, const std::vector<uint32_t>& crcs) {
    if (record_crcs_.empty() || is_whole(piece)) return true;
    if (crcs.size() != piece.end_record - piece.first_record) return false;
    std::ranges::copy(crcs, record_crcs_.begin() + static_cast<ptrdiff_t>(piece.first_record));
    return true;
  }

  const Target& target_;
  const ConversionSource& source_;
  const ConvertOptions& options_;
  ConvertReport& report_;
  Share share_;
  Pieces pieces_;
  std::vector<uint32_t> record_crcs_;  // of all records, where a piece closes a file
  std::optional<SourceFingerprint> fingerprint_;
  JobIdentity identity_;
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
