#include "publish/store_writer.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <ckpt/error.h>

#include "staging/store_staging.h"
#include "write/execute_into.h"
#include "write/read_back.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kThreads = 6;  // which wait for the store most of the time

class StoreWriter {
 public:
  StoreWriter(const JobRun& run, fs::path destination, const StagingOptions& options)
      : run_(run),
        destination_(std::move(destination)),
        staging_(destination_, options, !run.job.last.empty(), run.options.execute.stop) {}

  void write() {
    if (run_.options.finish) {
      if (const auto all = staging_.try_lead(true)) return publish(*all);
      throw Error(ErrorCode::NotFound, {address_text(destination_)},
                  "not all of its " + std::to_string(run_.job.identity.processes) +
                      " processes have written their parts");
    }
    if (run_.job.identity.processes > 1) return write_part();
    const std::vector<FinishedPiece> written = write_payload(run_.job.payload);
    run_.check_source();
    publish(written);
  }

 private:
  // As the others do theirs; the last one publishes.
  void write_part() {
    auto written = staging_.kept_part();
    const std::vector<Piece> share = run_.job.payload_of(run_.options.share.rank);
    if (written) {
      refuse_others(*written, share);
    } else {
      written = write_payload(share);
    }
    run_.check_source();
    if (run_.source.before_publishing) run_.source.before_publishing();
    staging_.leave_part(*written);
    run_.report.kept_bytes = staging_.kept_bytes();
    run_.report.outcome = Outcome::PartWritten;
    if (const auto all = staging_.try_lead(false)) publish(*all);
  }

  // What records of parts name is what was to be written.
  void refuse_others(const std::vector<FinishedPiece>& recorded,
                     const std::vector<Piece>& wanted) const {
    std::set<std::pair<std::string, uint64_t>> left;
    for (const Piece& piece : wanted) {
      left.emplace(run_.job.name_of(piece), piece.bytes.count_bytes);
    }
    const bool is_right = std::ranges::all_of(recorded, [&](const FinishedPiece& piece) {
      return left.erase({piece.path, piece.bytes.count_bytes}) == 1;
    });
    if (is_right && left.empty()) return;
    throw Error(ErrorCode::Corrupt, {address_text(destination_)},
                "the records of parts name other files than are to be written",
                "--clean removes them");
  }

  void publish(const std::vector<FinishedPiece>& written) {
    refuse_others(written, run_.job.payload);
    staging_.seal();
    if (run_.options.verify) read_back(written);
    const bool was_proven = run_.job.identity.processes > 1 && !run_.options.finish;
    if (run_.source.before_publishing && !was_proven) run_.source.before_publishing();
    if (run_.source.complete) run_.source.complete(run_.target);
    hold_last();
    const auto& check_result = run_.source.check_result;
    if (check_result) run_.report.carried = check_result({destination_, staging_.content()});
    run_.check_source();
    staging_.commit();
    run_.report.kept_bytes = staging_.kept_bytes();
    run_.report.outcome = Outcome::Published;
  }

  std::vector<FinishedPiece> write_payload(const std::vector<Piece>& pieces) {
    std::vector<FinishedPiece> finished;
    if (pieces.empty()) return finished;
    std::mutex mutex;
    ExecuteOptions options = options_for_store(run_.job.plan, run_.options.execute);
    staging_.set_part_bytes(options.window_bytes);
    options.pieces = pieces;
    options.on_piece = [&](const WrittenPiece& written) {
      const std::scoped_lock lock(mutex);
      finished.push_back({run_.job.name_of(written.piece), written.piece.bytes, written.crc32, {}});
    };
    run_.report.stats =
        execute_into({run_.target, run_.job.plan, run_.source.payloads}, staging_, options);
    return finished;
  }

  void read_back(const std::vector<FinishedPiece>& written) {
    const std::shared_ptr<const Folder> content = staging_.content();
    const auto place_of = [&](const std::string& path) {
      return path.empty() ? destination_ : destination_ / path;
    };
    const WrittenFiles files{
        [&](const std::string& path) { return content->stat(place_of(path)); },
        [&](const std::string& path, ByteRange) {
          const fs::path place = place_of(path);
          return content->open(place.parent_path(), {place.filename().string(), path});
        }};
    const auto is_right = are_as_written(files, written, run_.options.execute);
    for (size_t i = 0; i < written.size(); ++i) {
      run_.report.verified_bytes += written[i].bytes.count_bytes;
      if (!is_right[i]) throw_not_as_written(place_of(written[i].path));
    }
  }

  // Files without payload, the markers: small, and complete in memory.
  void hold_last() {
    ExecuteStats& stats = run_.report.stats;
    for (const Piece& piece : run_.job.last) {
      std::string& bytes = run_.target.files[piece.file].bytes;
      if (bytes.size() != piece.bytes.count_bytes) {
        throw std::logic_error("a file has a different length from the planned one");
      }
      stats.written_bytes += bytes.size();
      ++stats.file_count;
      staging_.hold(run_.job.name_of(piece), std::exchange(bytes, {}));
    }
  }

  const JobRun& run_;
  const fs::path destination_;
  StoreStaging staging_;
};

}  // namespace

void refuse_for_store(const ConversionSource& source, const ConvertOptions& options) {
  const std::pair<bool, const char*> refusals[] = {
      {options.force,
       "--force cannot replace what is in an object store: not in one step; remove it first"},
      {options.zstd_level.has_value(),
       "--zstd writes files twice, which an object store cannot do"},
      {options.integrity, "--integrity reads files again, which an object store does not do yet"},
      {!source.links.empty(), "--link makes links to files, which no object store has"}};
  for (const auto& [is_asked, problem] : refusals) {
    if (is_asked) {
      throw Error(ErrorCode::Unsupported, {}, problem,
                  "or write it on this machine, then copy it there");
    }
  }
}

ExecuteOptions options_for_store(const Plan& plan, ExecuteOptions options) {
  uint64_t longest_bytes = 0;
  for (const PlannedFile& file : plan.files) {
    longest_bytes = std::max(longest_bytes, file.count_bytes);
  }
  options.window_bytes = StoreStaging::part_bytes_for(longest_bytes);
  if (options.threads == 0) options.threads = kThreads;
  return options;
}

void write_into_store(const JobRun& run, const fs::path& destination,
                      const StagingOptions& options) {
  const bool may_be_late = options.resume || options.share.world_size > 1 || run.options.finish;
  if (may_be_late && StoreStaging::finish_published(destination, options.job)) {
    run.report.outcome = Outcome::AlreadyPublished;
    return;
  }
  StoreWriter(run, address_text(destination), options).write();
}

}  // namespace ckpt
