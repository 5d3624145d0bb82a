// A whole folder: the input is a list of files, each a byte that chooses the name, three bytes with
// the length (little-endian) and the content. What opens is listed, and its first tensors are read.
#include <ckpt/checkpoint.h>

#include <fstream>

#include "fuzz/fuzz.h"
#include "support/convention.h"
#include "support/temporary_folder.h"

namespace {

constexpr const char* kNames[] = {
    ".metadata",
    "__0_0.distcp",
    "__1_0.distcp",
    "common.pt",
    "metadata.json",
    "latest_checkpointed_iteration.txt",
    "file.pt",
    "model.safetensors",
    "model.safetensors.index.json",
    "iter_0000003/.metadata",
    "iter_0000003/mp_rank_00/model_optim_rng.pt",
    "iter_0000003/mp_rank_00/layer_wise_optimizer_0.pt",
};
constexpr uint64_t kReadBytesMax = 1 << 16;

void write_files(const std::filesystem::path& folder, std::string_view input) {
  while (input.size() > 4) {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(input[i])); };
    const auto path = folder / kNames[byte(0) % std::size(kNames)];
    const size_t count = byte(1) | byte(2) << 8 | byte(3) << 16;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << input.substr(4, count);
    input.remove_prefix(std::min(input.size(), 4 + count));
  }
}

void read_some(const ckpt::Checkpoint& checkpoint) {
  size_t left = 8;
  for (const ckpt::TensorEntry& tensor : checkpoint.catalog().tensors) {
    if (left-- == 0) return;
    const uint64_t count_bytes = ckpt::count_bytes(tensor);
    if (count_bytes > kReadBytesMax) continue;
    std::vector<std::byte> bytes(count_bytes);
    fuzz::succeeds([&] { checkpoint.read(tensor, ckpt::whole(tensor.shape), bytes); });
    fuzz::succeeds([&] { checkpoint.check_crc(tensor); });
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const test::TemporaryFolder folder;
  write_files(folder.path(), fuzz::text_of(data, size));
  fuzz::succeeds([&] { read_some(test::open_checkpoint(folder.path())); });
  return 0;
}
