#include <ckpt/error.h>
#include <ckpt/execute.h>
#include <ckpt/run_jobs.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/checked_math.h"
#include "io/directory.h"
#include "read/payload_reader.h"
#include "work/workers.h"
#include "write/archive_state.h"
#include "write/execute_into.h"
#include "write/read_back.h"
#include "write/record_reader.h"
#include "write/shared_reads.h"
#include "write/source_checker.h"
#include "write/window_composer.h"

namespace ckpt {
namespace {

struct Worker {
  ScratchBuffer window;
  ScratchBuffer scratch;
};

std::vector<Piece> chosen_pieces(const Plan& plan, const ExecuteOptions& options) {
  return options.pieces.empty() ? whole_files(plan) : options.pieces;
}

uint64_t bytes_of(const std::vector<Piece>& pieces) {
  uint64_t sum_bytes = 0;
  for (const Piece& piece : pieces) sum_bytes += piece.bytes.count_bytes;
  return sum_bytes;
}

uint64_t file_count(const std::vector<Piece>& pieces) {
  std::set<uint32_t> files;
  for (const Piece& piece : pieces) files.insert(piece.file);
  return files.size();
}

class Execution {
 public:
  Execution(const Target& target, const Plan& plan, std::vector<Piece> pieces,
            const PayloadSource& source, const ExecuteOptions& options)
      : target_(target),
        plan_(plan),
        source_(source),
        options_(options),
        shared_reads_(find_shared_reads(target, plan, pieces)),
        budget_(make_memory_budget(options, bookkeeping_bytes(plan, options.pieces),
                                   shared_reads_.readers_max())),
        shared_blocks_(budget_.shared_bytes),
        checker_(source_, options.on_read),
        indices_(budget_.threads),
        windows_(std::move(pieces), budget_.window_bytes),
        order_(order_windows(target, plan, shared_reads_, windows_)),
        archives_(target, plan, windows_, options.record_crcs),
        meter_(options, bytes_of(windows_.pieces())) {
    for (unsigned i = 0; i < budget_.threads; ++i) {
      workers_.push_back(
          {ScratchBuffer(budget_.window_bytes), ScratchBuffer(budget_.window_bytes)});
    }
  }

  ExecuteStats run(Destination& destination) {
    OutputFiles files(destination, plan_, windows_);
    run_jobs(windows_.count(), budget_.threads, [&](size_t number, unsigned worker) {
      try {
        meter_.stop_if_requested();
        write_window(number, workers_[worker], files);
      } catch (...) {
        archives_.room().fail(number);
        throw;
      }
    });
    run_jobs(checker_.gather_incomplete(), budget_.threads, [&](size_t index, unsigned worker) {
      meter_.stop_if_requested();
      checker_.complete(index, workers_[worker].scratch.bytes());
    });
    return {source_.count_bytes(), meter_.done_bytes(), file_count(windows_.pieces()),
            overflows_.take()};
  }

 private:
  void write_window(size_t number, Worker& worker, OutputFiles& files) {
    const Window window = windows_.window(order_[number]);
    const uint64_t count_bytes = window.bytes.count_bytes;
    const std::span<std::byte> blocks =
        worker.window.bytes().first(align_up(count_bytes, OutputFile::kBlockBytes));
    const ReadBuffers buffers{worker.scratch, shared_reads_, shared_blocks_, &overflows_};
    const ReadBuffers of_others{worker.scratch, shared_reads_, shared_blocks_, nullptr};
    WindowComposer composer({target_, plan_, archives_},
                            RecordReader(source_, checker_, indices_, buffers),
                            RecordReader(source_, foreign_, indices_, of_others));
    const WindowSums sums = composer.compose(window, number, blocks.first(count_bytes));
    std::ranges::fill(blocks.subspan(count_bytes), std::byte{0});
    const auto finished = files.write(window, blocks, sums);
    meter_.advance(count_bytes);
    if (finished && options_.on_piece) options_.on_piece(*finished);
  }

  const Target& target_;
  const Plan& plan_;
  PassingSource source_;
  const ExecuteOptions& options_;
  const SharedReads shared_reads_;
  MemoryBudget budget_;
  SharedBlocks shared_blocks_;
  SourceChecker checker_;
  const AfterRead unseen_;
  SourceChecker foreign_{source_, unseen_};  // never asked
  ChunkIndices indices_;
  OverflowCounts overflows_;
  WindowMap windows_;
  const std::vector<uint32_t> order_;  // of the windows
  OpenArchives archives_;
  std::vector<Worker> workers_;
  WorkMeter meter_;
};

void check_request(const Target& target, const Plan& plan, const ExecuteOptions& options) {
  size_t record_count = 0;
  for (const TargetFile& file : target.files) {
    for (const TargetArchive& archive : file.archives) record_count += archive.records.size();
  }
  if (plan.files.size() != target.files.size() || plan.records.size() != record_count ||
      (!options.record_crcs.empty() && options.record_crcs.size() != record_count) ||
      std::ranges::any_of(options.pieces, [&](const Piece& piece) {
        return piece.file >= plan.files.size() || (piece.closes && options.record_crcs.empty());
      })) {
    throw Error(ErrorCode::InvalidArgument, {}, "the plan was made for another target");
  }
}

// Whoever makes a file that several processes write reserves room for all of it.
uint64_t bytes_to_reserve(const Plan& plan, const std::vector<Piece>& pieces, const Place& folder) {
  uint64_t sum_bytes = 0;
  std::optional<uint32_t> file_before;
  for (const Piece& piece : pieces) {
    if (std::exchange(file_before, piece.file) == piece.file || piece.closes) continue;
    const auto& [path, count_bytes, archive_offsets] = plan.files[piece.file];
    const auto state = state_of_entry(output_path(folder, path));
    if (!state || state->count_bytes < count_bytes) sum_bytes += count_bytes;
  }
  return sum_bytes;
}

void check_room(uint64_t wanted_bytes, const std::filesystem::path& folder) {
  const auto room_bytes = free_bytes(folder);
  if (room_bytes && wanted_bytes > *room_bytes) {
    throw Error(ErrorCode::IoFailure, {folder.string()},
                std::to_string(wanted_bytes) + " bytes are needed, " + std::to_string(*room_bytes) +
                    " are free");
  }
}

}  // namespace

uint64_t expected_peak_bytes(const Target& target, const Plan& plan,
                             const ExecuteOptions& options) {
  const uint64_t noted_bytes = bookkeeping_bytes(plan, options.pieces);
  const size_t readers =
      find_shared_reads(target, plan, chosen_pieces(plan, options)).readers_max();
  return expected_peak_bytes(make_memory_budget(options, noted_bytes, readers), noted_bytes);
}

ExecuteStats execute(const Target& target, const Plan& plan, const PayloadSource& source,
                     Staging& staging, const ExecuteOptions& options) {
  check_request(target, plan, options);
  std::vector<Piece> pieces = chosen_pieces(plan, options);
  check_room(bytes_to_reserve(plan, pieces, staging.place()), staging.folder().parent_path());
  LocalFiles files(staging.place());
  return Execution(target, plan, std::move(pieces), source, options).run(files);
}

ExecuteStats execute_into(const WriteOrder& order, Destination& destination,
                          const ExecuteOptions& options) {
  check_request(order.target, order.plan, options);
  return Execution(order.target, order.plan, chosen_pieces(order.plan, options), order.source,
                   options)
      .run(destination);
}

}  // namespace ckpt
