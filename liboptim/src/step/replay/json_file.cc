#include "step/replay/json_file.h"

#include <ckpt/error.h>
#include <fstream>
#include <iterator>
#include <string>

namespace optim {
namespace {

constexpr std::uintmax_t kFileBytesMax = std::uintmax_t{1} << 20;

}  // namespace

nlohmann::json read_json_file(const std::filesystem::path& path) {
  const std::string file = path.string();
  std::error_code error;
  const std::uintmax_t count_bytes = std::filesystem::file_size(path, error);
  if (error) {
    const bool is_missing = error == std::errc::no_such_file_or_directory;
    throw ckpt::Error(is_missing ? ckpt::ErrorCode::NotFound : ckpt::ErrorCode::IoFailure,
                      {.file = file}, error.message());
  }
  if (count_bytes > kFileBytesMax) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = file}, "JSON of more than 1 MiB");
  }
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = file}, "cannot be read");
  nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file}, "malformed JSON");
  }
  return value;
}

}  // namespace optim
