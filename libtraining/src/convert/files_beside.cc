#include "convert/files_beside.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <ckpt/convert.h>
#include <ckpt/files_beside.h>
#include <ckpt/safetensors_target.h>

#include "convert/checks.h"
#include "huggingface/model_files.h"

namespace optim {
namespace {

// Of a folder of Megatron Bridge; the configuration is the writer's.
constexpr std::string_view kCarried[] = {"train_state.pt", "latest_train_state.pt", "tokenizer"};
constexpr uint64_t kCarriedBytesMax = 64 << 20;  // they are held in memory

// Whether a copy in the target, or what is in a folder of it, is what this names.
bool is_carried(const std::string& shown, const ckpt::Target& target) {
  return std::ranges::any_of(target.files, [&](const ckpt::TargetFile& file) {
    if (!file.archives.empty()) return false;
    for (std::string path = file.path; !path.empty(); path.resize(path.rfind('/'))) {
      if (shown == path || shown.ends_with("/" + path)) return true;
      if (path.find('/') == path.npos) break;
    }
    return false;
  });
}

}  // namespace

void carry_files_beside(const OpenedTraining& source, const LayerWiseTargetSpec& spec,
                        const std::string& folder_name, ckpt::Target& target) {
  for (ckpt::TargetFile& file : ckpt::copies_of_beside(source, kCarried, kCarriedBytesMax)) {
    const bool is_in_root = file.path.starts_with("../");
    if (is_in_root && !spec.as_root) continue;
    if (is_in_root) file.path.erase(0, 3);
    if (!is_in_root && spec.as_root) file.path = folder_name + "/" + file.path;
    target.files.insert(target.files.begin(), std::move(file));
  }
}

void add_files(const std::vector<ckpt::TargetFile>& files, const std::string& folder,
               ckpt::Target& target) {
  for (ckpt::TargetFile file : files) {
    file.path = folder + file.path;
    target.files.insert(target.files.begin(), std::move(file));
  }
}

void list_files_beside(const OpenedTraining& source, ckpt::Target& target, std::string_view used) {
  for (ckpt::NotCarried& file : ckpt::files_not_carried(source)) {
    if (!used.empty() && file.what.ends_with(used)) continue;
    if (!is_carried(file.what, target)) target.not_carried.push_back(std::move(file));
  }
}

ConvertReport write_folder(Job job, WrittenFolder folder, const ConvertOptions& options) {
  ckpt::SafetensorsSpec spec;
  spec.as_folder = ckpt::is_safetensors_folder(job.destination);
  for (const auto& [key, value] : folder.tensors) {
    spec.tensors.push_back({key, {value.entry, ckpt::whole(value.entry->shape)}, value.shape});
  }
  const bool as_folder = spec.as_folder;
  ckpt::Target target = ckpt::make_safetensors_target(std::move(spec), folder.not_carried);
  if (as_folder) {
    auto copies =
        ckpt::copies_of_beside(job.source, model_and_tokenizer_files(), kModelFilesBytesMax);
    target.files.insert(target.files.begin(), std::make_move_iterator(copies.begin()),
                        std::make_move_iterator(copies.end()));
  }
  list_files_beside(job.source, target);
  job.check_result =
      export_check(std::move(folder.tensors), job.payloads(), target.not_carried, options.base);
  return write(job, std::move(target), options);
}

}  // namespace optim
