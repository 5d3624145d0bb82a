// Which files of a torch_dist source a result at other sizes shares with it.
#include "convert/links.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include <ckpt/error.h>
#include <ckpt/folder.h>
#include <training/megatron_folders.h>

#include "grid/glu_rows.h"
#include "layouts/target_filings.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;

const std::string kCommonName(kMegatronFolders.common_file);

}  // namespace

void require_linkable(const OpenedTraining& source, const FiledState& state,
                      const LayerWiseTargetSpec& spec, uint64_t vocabulary_rows) {
  if (spec.format != ckpt::Format::TorchDist || state.filed.container != ckpt::Format::TorchDist) {
    throw Error(ErrorCode::Unsupported, {},
                "only torch_dist can be linked: in `torch`, files hold what their rank owns",
                "leave out --link, so that files are copied");
  }
  const FiledAs target = choose_filings(state, spec.format, spec.form);
  const bool is_bucketed =
      target.has(kBuckets) || std::ranges::any_of(state.filed.optimizers, &Filing::in_order);
  if (is_bucketed || target != state.filed) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                is_bucketed ? "cannot be linked: flat buckets are those of the old ranks"
                            : "cannot be linked: the form of the optimizer's state changes",
                "leave out --link, so that files are copied");
  }
  if (source.document(kCommonName) == nullptr) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                "cannot be linked: its common state, which changes, is in the store",
                "leave out --link, so that files are copied");
  }
  if (vocabulary_rows != target_vocabulary(state, state.grid, {})) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                "cannot be linked: the padding of the vocabulary changes with these sizes",
                "leave out --link, so that files are copied");
  }
}

void require_rows_in_place(const OpenedTraining& source, const FiledState& state,
                           const RunGrid& grid) {
  if (!cuts_blocks_anew(state, grid)) return;
  throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
              "cannot be linked: rows of gate and up alternate in blocks, whose order in the "
              "files is of the number of tensor-parallel ranks",
              "leave out --link, so that files are copied");
}

bool has_same_stages(const RunGrid& a, const RunGrid& b) {
  return a.sizes.tensor_parallel == b.sizes.tensor_parallel &&
         a.sizes.pipeline_parallel == b.sizes.pipeline_parallel;
}

Links link_what_stays(const OpenedTraining& source, ckpt::Target& target, bool same_places) {
  if (!ckpt::scheme_of(source.folder().native()).empty()) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = source.folder().string(), .key = {}},
                      "is in an object store; --link makes links to files of this machine",
                      "leave out --link");
  }
  std::filesystem::path folder;  // of the iteration, in a root
  for (const ckpt::TargetFile& file : target.files) {
    if (file.path.ends_with(kCommonName)) folder = std::filesystem::path(file.path).parent_path();
  }
  std::erase_if(target.files, [&](const ckpt::TargetFile& file) {
    const std::string name = std::filesystem::path(file.path).filename();
    const bool is_metadata = name == ".metadata" || name.ends_with(".distcp");
    return name == kMegatronFolders.backend_file || (same_places && is_metadata);
  });
  std::set<std::string> written;
  for (const ckpt::TargetFile& file : target.files) written.insert(file.path);
  Links links;
  for (const std::filesystem::path& file : source.files()) {
    const std::string path = (folder / file.lexically_relative(source.folder())).string();
    if (!written.contains(path)) links.push_back({file, path});
  }
  return links;
}

uint64_t count_bytes(const Links& links) {
  uint64_t sum_bytes = 0;
  for (const ckpt::LinkedFile& link : links) sum_bytes += std::filesystem::file_size(link.source);
  return sum_bytes;
}

}  // namespace optim
