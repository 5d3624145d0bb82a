// Files of a checkpoint that an incomplete copy left out, or cut off.
#include <algorithm>

#include <ckpt/catalog.h>
#include <ckpt/error.h>

#include "model/check_catalog.h"

namespace ckpt {
namespace {

constexpr size_t kNamedMax = 40;  // in one error; ckpt-inspect verify names all

std::string others_text(const std::vector<const FileEntry*>& lacking, size_t file_count) {
  if (lacking.size() == 1) return {};
  const size_t others = lacking.size() - 1;
  std::string text = "; " + std::to_string(others) + " more of " + std::to_string(file_count) +
                     " files " + (others == 1 ? "is" : "are") + " missing or truncated: ";
  const size_t end = std::min(lacking.size(), kNamedMax);
  for (size_t i = 1; i < end; ++i) {
    text += (i == 1 ? "" : ", ") + escaped(lacking[i]->path) + " " + lacking[i]->lack;
  }
  if (end < lacking.size()) text += ", and " + std::to_string(lacking.size() - end) + " others";
  return text;
}

}  // namespace

std::vector<const FileEntry*> lacking_files(const Catalog& catalog) {
  std::vector<const FileEntry*> lacking;
  for (const FileEntry& file : catalog.files) {
    if (!file.lack.empty()) lacking.push_back(&file);
  }
  std::ranges::sort(lacking, {}, &FileEntry::path);
  return lacking;
}

void refuse_incomplete(const Catalog& catalog, Where where) {
  const std::vector<const FileEntry*> lacking = lacking_files(catalog);
  if (lacking.empty()) return;
  if (where.file.empty()) where.file = lacking[0]->path;
  throw Error(ErrorCode::Corrupt, std::move(where),
              lacking[0]->lack + others_text(lacking, catalog.files.size()),
              "the checkpoint is incomplete: copy what is missing again")
      .mark_incomplete();
}

}  // namespace ckpt
