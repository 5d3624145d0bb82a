#include "convert/written_folder.h"

#include <string_view>
#include <utility>

#include <ckpt/convert.h>
#include <ckpt/files_beside.h>
#include <ckpt/safetensors_target.h>

#include "convert/check_result.h"
#include "convert/files_beside.h"

namespace optim {
namespace {

constexpr std::string_view kCopied[] = {"generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "tokenizer.model",
                                        "special_tokens_map.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "added_tokens.json",
                                        "chat_template.jinja",
                                        "README.md",
                                        "preprocessor_config.json",
                                        "config.json"};
constexpr uint64_t kCopiedBytesMax = 256 << 20;  // they are held in memory

}  // namespace

ConvertReport write_folder(Job job, WrittenFolder folder, const ConvertOptions& options) {
  ckpt::SafetensorsSpec spec;
  spec.as_folder = ckpt::is_safetensors_folder(job.destination);
  for (const auto& [key, value] : folder.tensors) {
    spec.tensors.push_back({key, {value.entry, ckpt::whole(value.entry->shape)}, value.shape});
  }
  const bool as_folder = spec.as_folder;
  ckpt::Target target = ckpt::make_safetensors_target(std::move(spec), folder.not_carried);
  if (as_folder) {
    auto copies = ckpt::copies_of_beside(job.source, kCopied, kCopiedBytesMax);
    target.files.insert(target.files.begin(), std::make_move_iterator(copies.begin()),
                        std::make_move_iterator(copies.end()));
  }
  list_files_beside(job.source, target);
  job.check_result =
      export_check(std::move(folder.tensors), job.payloads(), target.not_carried, options.base);
  return write(job, std::move(target), options);
}

}  // namespace optim
