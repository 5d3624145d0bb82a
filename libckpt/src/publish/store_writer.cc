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
  StoreWriter(const StoreOrder& order, fs::path destination, const StagingOptions& options)
      : order_(order),
        destination_(std::move(destination)),
        staging_(destination_, options, !order.job.last().empty(), order.options.execute.stop) {}

  void write() {
    if (order_.options.finish) return publish(all_or_throw());
    if (order_.job.identity().processes > 1) return write_part();
    const std::vector<FinishedPiece> written = write_payload(order_.job.payload());
    check_source();
    publish(written);
  }

 private:
  // As the others do theirs; the last one publishes.
  void write_part() {
    auto written = staging_.kept_part();
    const std::vector<Piece> share = order_.job.payload_of(order_.options.share.rank);
    if (written) {
      refuse_others(*written, share);
    } else {
      written = write_payload(share);
    }
    check_source();
    if (order_.source.before_publishing) order_.source.before_publishing();
    staging_.leave_part(*written);
    order_.report.kept_bytes = staging_.kept_bytes();
    order_.report.outcome = Outcome::PartWritten;
    if (const auto all = staging_.try_lead(false)) publish(*all);
  }

  StoreStaging::Pieces all_or_throw() {
    if (auto all = staging_.try_lead(true)) return std::move(*all);
    throw Error(ErrorCode::NotFound, {address_text(destination_)},
                "not all of its " + std::to_string(order_.job.identity().processes) +
                    " processes have written their parts");
  }

  // What records of parts name is what was to be written.
  void refuse_others(const std::vector<FinishedPiece>& recorded,
                     const std::vector<Piece>& wanted) const {
    std::set<std::pair<std::string, uint64_t>> left;
    for (const Piece& piece : wanted) {
      left.emplace(order_.job.name_of(piece), piece.bytes.count_bytes);
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
    refuse_others(written, order_.job.payload());
    staging_.seal();
    if (order_.options.verify) read_back(written);
    const bool was_proven = order_.job.identity().processes > 1 && !order_.options.finish;
    if (order_.source.before_publishing && !was_proven) order_.source.before_publishing();
    if (order_.source.complete) order_.source.complete(order_.target);
    hold_last();
    const auto& check_result = order_.source.check_result;
    if (check_result) order_.report.carried = check_result({destination_, staging_.content()});
    check_source();
    staging_.commit();
    order_.report.kept_bytes = staging_.kept_bytes();
    order_.report.outcome = Outcome::Published;
  }

  std::vector<FinishedPiece> write_payload(const std::vector<Piece>& pieces) {
    std::vector<FinishedPiece> finished;
    if (pieces.empty()) return finished;
    std::mutex mutex;
    ExecuteOptions options = options_for_store(order_.job.plan(), order_.options.execute);
    staging_.set_part_bytes(options.window_bytes);
    options.pieces = pieces;
    options.on_piece = [&](const WrittenPiece& written) {
      const std::scoped_lock lock(mutex);
      finished.push_back(
          {order_.job.name_of(written.piece), written.piece.bytes, written.crc32, {}});
    };
    order_.report.stats =
        execute_into({order_.target, order_.job.plan(), order_.source.payloads}, staging_, options);
    return finished;
  }

  void check_source() const {
    if (order_.fingerprint) order_.fingerprint->check_unchanged();
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
    const auto is_right = are_as_written(files, written, order_.options.execute);
    for (size_t i = 0; i < written.size(); ++i) {
      order_.report.verified_bytes += written[i].bytes.count_bytes;
      if (!is_right[i]) throw_not_as_written(place_of(written[i].path));
    }
  }

  // Files without payload, the markers: small, and complete in memory.
  void hold_last() {
    ExecuteStats& stats = order_.report.stats;
    for (const Piece& piece : order_.job.last()) {
      std::string& bytes = order_.target.files[piece.file].bytes;
      if (bytes.size() != piece.bytes.count_bytes) {
        throw std::logic_error("a file has a different length from the planned one");
      }
      stats.written_bytes += bytes.size();
      ++stats.file_count;
      staging_.hold(order_.job.name_of(piece), std::exchange(bytes, {}));
    }
  }

  const StoreOrder& order_;
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

void write_into_store(const StoreOrder& order, const fs::path& destination,
                      const StagingOptions& options) {
  const bool may_be_late = options.resume || options.share.world_size > 1 || order.options.finish;
  if (may_be_late && StoreStaging::finish_published(destination, options.job)) {
    order.report.outcome = Outcome::AlreadyPublished;
    return;
  }
  StoreWriter(order, address_text(destination), options).write();
}

}  // namespace ckpt
