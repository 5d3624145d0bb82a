#include "huggingface/model_files.h"

#include <algorithm>
#include <iterator>
#include <string>

#include <ckpt/error.h>
#include <ckpt/folder.h>
#include <ckpt/named_file.h>

#include "state/words.h"

namespace optim {

std::vector<std::string_view> model_and_tokenizer_files() {
  std::vector<std::string_view> names(std::begin(kModelFiles), std::end(kModelFiles));
  names.insert(names.end(), std::begin(kTokenizerFiles), std::end(kTokenizerFiles));
  return names;
}

std::vector<ckpt::TargetFile> copies_in(const std::filesystem::path& folder,
                                        std::span<const std::string_view> names) {
  const auto files = ckpt::source_of(folder);
  std::vector<ckpt::TargetFile> copies;
  for (const std::string_view name : names) {
    if (files->kind_of(folder / name) != ckpt::EntryKind::File) continue;
    copies.push_back(
        {std::string(name), {}, ckpt::read_named_file(folder / name, kModelFilesBytesMax)});
  }
  return copies;
}

std::vector<ckpt::TargetFile> copies_of_tokenizer(const std::filesystem::path& folder) {
  std::vector<ckpt::TargetFile> copies = copies_in(folder, kTokenizerFiles);
  if (!copies.empty()) return copies;
  throw Error(ErrorCode::NotFound, {.file = folder.string(), .key = {}},
              "has no tokenizer.json, nor another file of a tokenizer");
}

}  // namespace optim
