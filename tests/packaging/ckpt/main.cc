// usage: example CHECKPOINT. Opens it, reads its first tensor, and catches an error of the library.
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/error.h>

namespace {

void print_first_tensor(const std::string& path) {
  const ckpt::Checkpoint checkpoint = ckpt::Checkpoint::open(path);
  const ckpt::Catalog& catalog = checkpoint.catalog();
  const ckpt::TensorEntry& first = catalog.tensors.at(0);
  std::vector<std::byte> content(ckpt::count_bytes(first));
  checkpoint.read(first, ckpt::whole(first.shape), content);
  std::printf("%zu tensors; %s: %zu bytes of %s\n", catalog.tensors.size(), first.key.c_str(),
              content.size(), std::string(ckpt::name(first.dtype)).c_str());
}

bool refuses_what_is_not_there(const std::string& path) {
  try {
    ckpt::Checkpoint::open(path + "/not there");
  } catch (const ckpt::Error& error) {
    std::printf("%s\n", error.what());
    return error.code() == ckpt::ErrorCode::NotFound;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  print_first_tensor(argv[1]);
  return refuses_what_is_not_there(argv[1]) ? 0 : 1;
}
