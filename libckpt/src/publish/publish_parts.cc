// The last steps of a conversion, by the process that publishes.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <ckpt/error.h>

#include "io/directory.h"
#include "io/publish.h"
#include "publish/finish_store.h"
#include "publish/piece_writer.h"
#include "staging/tree_of_ours.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

// Every piece is recorded, and there; takes down the checksums of its records. Returns them in
// their order.
std::vector<FinishedPiece> take_payload(const WriteAttempt& attempt, PieceWriter& writer,
                                        const std::vector<FinishedPiece>& recorded) {
  const Place& folder = attempt.staging.place();
  std::map<std::pair<std::string, uint64_t>, const FinishedPiece*> by_place;
  for (const FinishedPiece& piece : recorded) {
    by_place[{piece.path, piece.bytes.offset_bytes}] = &piece;
  }
  std::vector<FinishedPiece> payload;
  for (const Piece& piece : attempt.job.payload()) {
    const auto found = by_place.find({attempt.job.name_of(piece), piece.bytes.offset_bytes});
    if (found == by_place.end() || !attempt.job.is_there(folder, piece, *found->second) ||
        !writer.add_record_crcs(piece, found->second->record_crcs)) {
      throw Error(ErrorCode::IoFailure, {attempt.job.path_of(folder, piece).path().string()},
                  "differs from what the part records say was written");
    }
    payload.push_back(*found->second);
  }
  return payload;
}

// Nothing is published that is not planned: what an earlier attempt at publishing has left is
// removed, and what is not ours is refused.
void remove_strangers(const WriteAttempt& attempt) {
  const Place& folder = attempt.staging.place();
  if (kind_of_entry(folder) != EntryKind::Folder) return;
  std::set<fs::path> planned{folder.path()};
  for (const Piece& piece : attempt.job.payload()) {
    for (fs::path path = attempt.job.path_of(folder, piece).path(); planned.insert(path).second;) {
      path = path.parent_path();
    }
  }
  FolderTree tree = tree_of_ours(folder, attempt.files());
  for (auto* places : {&tree.folders, &tree.files}) {
    std::erase_if(*places, [&](const Place& place) { return planned.contains(place.path()); });
  }
  remove(tree);
}

void add_links(const WriteAttempt& attempt) {
  for (const LinkedFile& link : attempt.source.links) {
    make_folders(attempt.staging.place(), fs::path(link.path).parent_path());
    link_file(link.source, attempt.staging.place() / link.path);
  }
}

}  // namespace

void publish_parts(const WriteAttempt& attempt, PieceWriter& writer,
                   const std::vector<FinishedPiece>& recorded) {
  std::vector<FinishedPiece> written = take_payload(attempt, writer, recorded);
  remove_strangers(attempt);
  add_links(attempt);
  if (attempt.source.complete) attempt.source.complete(attempt.target);
  std::vector<FinishedPiece> last = writer.write_last();
  written.insert(written.end(), last.begin(), last.end());
  std::vector<FinishedPiece> changed = finish_store(attempt.staging.place(), attempt.options,
                                                    std::move(written), attempt.report.plan);
  std::erase_if(last, [&](const FinishedPiece& piece) {
    return std::ranges::find(changed, piece.path, &FinishedPiece::path) != changed.end();
  });
  writer.verify(last);
  writer.verify(changed);
  const auto& check_result = attempt.source.check_result;
  if (check_result) attempt.report.carried = check_result(attempt.staging.folder());
  if (attempt.fingerprint) attempt.fingerprint->check_unchanged();
  attempt.staging.commit();
  attempt.report.outcome = Outcome::Published;
}

}  // namespace ckpt
