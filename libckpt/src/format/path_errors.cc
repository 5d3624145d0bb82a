// What is said of a path that names no checkpoint.
#include "format/path_errors.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/error.h>
#include <ckpt/folder_convention.h>
#include <ckpt/nearest.h>

#include "base/byte_reader.h"
#include "base/text.h"
#include "format/foreign/foreign.h"
#include "format/format.h"
#include "format/joined/rank_files.h"
#include "format/torch/torch_save.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;
using std::string_view;

constexpr size_t kEntriesMax = 10'000, kFoldersMax = 16;  // looked at, and into, for a hint
constexpr const char* kMetadataName = ".metadata";

[[noreturn]] void not_found(const fs::path& path, std::string problem, std::string hint = {}) {
  throw Error(ErrorCode::NotFound, {path.string()}, std::move(problem), std::move(hint));
}

std::string shown(const fs::path& path) { return escaped(path.string()); }

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// The folder around one, as the user would name it.
fs::path around(const Folder& source, const fs::path& folder) {
  fs::path path = folder.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "ckpt/"
  const bool is_named = path.has_filename() && path != "." && path.filename() != "..";
  return is_named ? folder_of(path) : source.resolved(folder).parent_path();
}

// A hint must not fail where the error that it belongs to is known: what cannot be found is empty.
template <class Find>
auto if_readable(Find find) -> decltype(find()) {
  try {
    return find();
  } catch (const Error&) {
    return {};
  }
}

std::vector<std::string> entries_of(const Folder& source, const fs::path& folder) {
  std::vector<std::string> names = if_readable([&] { return source.list(folder); });
  if (names.size() > kEntriesMax) names.resize(kEntriesMax);
  return names;
}

bool holds_readable_checkpoint(const Folder& source, const fs::path& folder,
                               const FolderConvention* convention) {
  return if_readable([&] { return holds_checkpoint(source, folder, convention); });
}

// --- nothing is there ----------------------------------------------------------------------------

// The path with its first name that is not there replaced by the nearest one beside it.
std::optional<fs::path> nearest_path(const Folder& source, const fs::path& path) {
  fs::path known;
  for (auto part = path.begin(); part != path.end(); ++part) {
    const fs::path next = known / *part;
    if (source.has(next)) {
      known = next;
      continue;
    }
    const auto name = nearest(part->string(), entries_of(source, known.empty() ? "." : known));
    if (!name) return std::nullopt;
    fs::path meant = known / *name;
    const fs::path up_to_here = meant;
    while (++part != path.end()) meant /= *part;
    return source.has(meant) ? meant : up_to_here;
  }
  return std::nullopt;
}

std::string hint_of_missing(const Folder& source, const fs::path& path) {
  const auto meant = if_readable([&] { return nearest_path(source, path); });
  return meant ? "did you mean " + shown(*meant) + "?" : "";
}

// --- folders -------------------------------------------------------------------------------------

bool is_torch_save_file(const Folder& source, const fs::path& path) {
  static const std::set<std::string> kSuffixes = {".pt", ".pth", ".bin", ".ckpt"};
  if (!kSuffixes.contains(path.extension().string())) return false;
  return if_readable([&] {
    const auto file =
        source.open(folder_of(path), {path.filename().string(), {}, Links::MayLeadOut});
    return is_torch_save(head_of(*file, 64));
  });
}

std::optional<int64_t> iteration_at(const fs::path& folder, const FolderConvention* convention) {
  if (convention == nullptr) return std::nullopt;
  return iteration_named(folder.filename().string(), *convention);
}

// Of checkpoint-500, global_step500 and epoch=1-step=500.ckpt: 500; -1 where none is told.
int64_t step_in(const fs::path& path) {
  constexpr string_view kStep = "step=", kDigits = "0123456789";
  const std::string name = path.filename().string();
  const size_t mark = name.find(kStep);
  if (mark == name.npos && path.has_extension()) return -1;
  const size_t at = mark != name.npos ? mark + kStep.size() : name.find_last_not_of(kDigits) + 1;
  const size_t end = std::min(name.find_first_not_of(kDigits, at), name.size());
  return number_in<int64_t>(string_view(name).substr(at, end - at)).value_or(-1);
}

// The checkpoints right below a folder: iterations, the newest first, then what else there is, by
// the steps in their names.
std::vector<fs::path> checkpoints_in(const Folder& source, const fs::path& folder,
                                     const FolderConvention* convention) {
  std::vector<fs::path> found;
  for (const std::string& name : entries_of(source, folder)) {
    const fs::path path = folder / name;
    const EntryKind kind = source.kind_of_entry(path);
    const bool is_one =
        (kind == EntryKind::Folder && holds_readable_checkpoint(source, path, convention)) ||
        (kind == EntryKind::File && is_torch_save_file(source, path));
    if (is_one) found.push_back(path);
  }
  std::ranges::stable_sort(found, std::ranges::greater(), [convention](const fs::path& path) {
    return std::pair(iteration_at(path, convention).value_or(-1), step_in(path));
  });
  return found;
}

// ITEM_RANK.pt of torch_checkpointing, or one state after another: the names do not tell.
bool may_be_files_of_ranks(const std::vector<fs::path>& found) {
  return std::ranges::any_of(found, [&](const fs::path& path) {
    std::string text = path.string();
    if (!text.ends_with("_0.pt")) return false;
    text[text.size() - 4] = '1';
    return std::ranges::find(found, fs::path(text)) != found.end();
  });
}

// model/dist_ckpt beside optimizer/dist_ckpt, as verl has saved Megatron's since August 2026.
std::vector<fs::path> checkpoints_below(const Folder& source, const fs::path& folder,
                                        const FolderConvention* convention) {
  std::vector<fs::path> found = checkpoints_in(source, folder, convention);
  const std::vector<std::string> names = entries_of(source, folder);
  if (!found.empty() || names.size() > kFoldersMax) return found;
  for (const std::string& name : names) {
    if (source.kind_of_entry(folder / name) != EntryKind::Folder) continue;
    for (fs::path& path : checkpoints_in(source, folder / name, convention)) {
      if (source.kind_of_entry(path) == EntryKind::Folder) found.push_back(std::move(path));
    }
  }
  return found;
}

std::string hint_of_folder(const Folder& source, const fs::path& folder,
                           const FolderConvention* convention) {
  const std::vector<fs::path> found = checkpoints_below(source, folder, convention);
  if (found.empty()) return {};
  const std::string first = shown(found[0]);
  const bool is_folder = source.kind_of_entry(found[0]) == EntryKind::Folder;
  if (found.size() == 1) {
    return escaped(found[0].lexically_relative(folder).string()) + (is_folder ? "/" : "") +
           " in it is a checkpoint: open " + first;
  }
  const std::string count = std::to_string(found.size()) + " checkpoints are in it: ";
  if (iteration_at(found[0], convention)) {
    return count + "open the newest, " + first + ", or choose one with --iteration N";
  }
  return count + "open one of them, such as " + first +
         (may_be_files_of_ranks(found) ? "; where torch_checkpointing wrote them, the folder's "
                                         "metadata.pkl is missing, which makes them one"
                                       : "");
}

// A root of DeepSpeed whose `latest` leads to no folder.
void refuse_root_of_deepspeed(const Folder& source, const fs::path& root,
                              const FolderConvention* convention) {
  const std::string hint = hint_of_folder(source, root, convention);
  const auto tag = if_readable([&] { return deepspeed_tag(source, root); });
  if (tag && source.kind_of_entry(root / *tag) == EntryKind::Absent) {
    not_found(root / *tag, "the folder that `latest` names is missing", hint);
  }
  if (!tag && !hint.empty()) {
    not_found(root, "`latest`, which names the folder that DeepSpeed loads, is missing", hint);
  }
}

bool is_dist_part(string_view name, const FolderConvention* convention) {
  return name.ends_with(".distcp") || (convention != nullptr && name == convention->common_file);
}

// A rank's folder of a `torch` checkpoint, which is read with the others.
void refuse_rank_folder(const Folder& source, const fs::path& folder,
                        const FolderConvention& convention) {
  const fs::path path = source.resolved(folder);
  const bool is_rank = path.filename().string().starts_with(convention.rank_folder_prefix);
  if (!is_rank || !holds_readable_checkpoint(source, path.parent_path(), &convention)) return;
  not_found(folder,
            "is one rank's folder of a " + std::string(convention.framework) +
                " checkpoint; expected the folder around it",
            "open " + shown(around(source, folder)));
}

// What would have made a folder a checkpoint.
std::string expected_entries(const FolderConvention* convention) {
  if (convention == nullptr) return "no .metadata, no safetensors file";
  return "no .metadata, no " + std::string(convention->rank_folder_prefix) +
         " folder, no safetensors file, no " + std::string(convention->tracker);
}

// --- files that belong to a folder ---------------------------------------------------------------

constexpr string_view kDistPart = "a part of a torch_dist (DCP) checkpoint";

// What a file is a part of; empty where it is none.
string_view part_kind(const fs::path& path, string_view head, const FolderConvention* convention) {
  const std::string name = path.filename().string();
  if (convention != nullptr && name == convention->tracker) {
    return "the tracker of a checkpoint root";
  }
  if (name == kMetadataName || (name.starts_with("__") && name.ends_with(kMetadataName))) {
    return kDistPart;
  }
  if (name.ends_with(".distcp")) return kDistPart;
  const bool is_backend = convention != nullptr && name == convention->backend_file &&
                          head.find(convention->backend_key) != head.npos;
  return is_backend ? kDistPart : string_view();
}

// A u64 header length, which reaches beyond the file's end, then JSON.
bool is_cut_safetensors(string_view head) {
  constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own rule
  if (head.size() < 10 || !head.substr(8).starts_with("{\"")) return false;
  return ByteReader(std::as_bytes(std::span(head))).u64() <= kHeaderBytesMax;
}

}  // namespace

void refuse_missing(const Folder& source, const fs::path& path) {
  if (!has_source(scheme_of(path.native()))) refuse_address(path);
  if (source.kind_of_entry(path) == EntryKind::Link) {
    not_found(path, "is a link to what does not exist", "readlink says where it leads");
  }
  not_found(path, "no such file or folder", hint_of_missing(source, path));
}

void refuse_folder(const Folder& source, const fs::path& folder,
                   const FolderConvention* convention) {
  const std::vector<std::string> entries = entries_of(source, folder);
  if (is_root_of_deepspeed(entries)) refuse_root_of_deepspeed(source, folder, convention);
  if (const Foreign* const foreign = foreign_folder(entries)) refuse_foreign(*foreign, folder);
  if (convention != nullptr) refuse_rank_folder(source, folder, *convention);
  if (std::ranges::any_of(entries, [convention](const std::string& name) {
        return is_dist_part(name, convention);
      })) {
    throw Error(ErrorCode::Corrupt, {folder.string()},
                "holds parts of a torch_dist (DCP) checkpoint, but .metadata is missing",
                "the save was interrupted, or whoever copied it left out names that begin with a "
                "dot: copy the folder, not FOLDER/*")
        .mark_incomplete();
  }
  std::string hint = hint_of_folder(source, folder, convention);
  if (hint.empty() && convention == nullptr) {
    hint =
        "what a run of a framework saved is opened by its FolderConvention; of Megatron by "
        "optim::open_checkpoint() of <training/opened_training.h>";
  }
  not_found(folder, "holds no checkpoint: " + expected_entries(convention), std::move(hint));
}

std::string hint_of_iterations(const Folder& source, const fs::path& root,
                               const FolderConvention& convention) {
  const std::vector<IterationFolder> found = iterations_in(source, root, convention, {});
  if (found.empty()) return {};
  const std::string newest = std::to_string(found[0].iteration);
  if (found.size() == 1) return "it holds iteration " + newest + " only: --iteration " + newest;
  return "it holds " + std::to_string(found.size()) + " iterations, the newest is " + newest +
         ": --iteration " + newest;
}

void refuse_iteration(const Folder& source, const fs::path& root, int64_t iteration,
                      const FolderConvention& convention) {
  const std::string number = std::to_string(iteration);
  if (const auto own = iteration_at(source.resolved(root), &convention);
      own && holds_readable_checkpoint(source, root, &convention)) {
    not_found(root,
              "is iteration " + std::to_string(*own) + " itself; --iteration " + number +
                  " needs the root that holds it",
              "open " + shown(around(source, root)) + " with --iteration " + number);
  }
  if (std::string hint = hint_of_iterations(source, root, convention); !hint.empty()) {
    not_found(root / iteration_folder(iteration, convention), "the root holds no such iteration",
              std::move(hint));
  }
  const bool is_one = holds_readable_checkpoint(source, root, &convention);
  not_found(root,
            "holds no iterations (" + iteration_folder(3, convention) +
                "); --iteration needs a checkpoint root",
            is_one ? "it is a checkpoint itself: leave out --iteration"
                   : hint_of_folder(source, root, &convention));
}

void refuse_part(const Folder& source, const fs::path& path, string_view head,
                 const FolderConvention* convention) {
  const string_view part = part_kind(path, head, convention);
  if (part.empty()) return;
  const fs::path folder = folder_of(path);
  const bool is_whole = holds_readable_checkpoint(source, folder, convention);
  throw Error(ErrorCode::Unsupported, {path.string()},
              "is " + std::string(part) + "; expected the folder that holds it",
              is_whole ? "open " + shown(folder)
                       : "its folder, " + shown(folder) +
                             ", is needed whole, with .metadata and every .distcp");
}

void refuse_file(const fs::path& path, const RandomAccess& file) {
  if (const Foreign* const foreign = foreign_file(file)) refuse_foreign(*foreign, path);
  const Where where{path.string()};
  if (file.size_bytes() == 0) {
    throw Error(ErrorCode::Corrupt, where, "is empty; expected a torch.save or safetensors file",
                "an interrupted copy, download or save leaves such a file: get it again");
  }
  if (is_cut_safetensors(head_of(file, 16))) {
    throw Error(
        ErrorCode::Corrupt, where,
        "is a safetensors file that ends inside its header: " + truncated_text(file.size_bytes()),
        "an interrupted copy or download leaves such a file")
        .mark_incomplete();
  }
  throw Error(ErrorCode::Corrupt, {path.string(), 0},
              "neither a torch.save archive nor a safetensors file");
}

}  // namespace ckpt
