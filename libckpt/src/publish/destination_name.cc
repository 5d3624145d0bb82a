// What the name of a destination promises, against what is written there:
//
//   written                  refused names
//   a torch.save file        FOLDER/, .safetensors, .json, .distcp
//   a .safetensors file      FOLDER/
//   a folder of any format   .pt, .pth, .bin, .safetensors, .json, .distcp
//
// Folders called .ckpt are common: PyTorch Lightning writes them.
#include "publish/destination_name.h"

#include <algorithm>
#include <string>

#include <ckpt/error.h>

namespace ckpt {
namespace {

namespace fs = std::filesystem;

struct Suffix {
  const char* text;
  const char* of;  // what such a name is given to
  bool may_be_torch_file;
};
constexpr Suffix kSuffixes[] = {
    {".pt", "a torch.save file", true},
    {".pth", "a torch.save file", true},
    {".bin", "a torch.save file", true},
    {".safetensors", "a safetensors file", false},
    {".json", "a JSON file", false},
    {".distcp", "a part of a torch_dist (DCP) checkpoint", false},
};

[[noreturn]] void refuse(const fs::path& destination, const std::string& found,
                         const std::string& written, std::string hint) {
  throw Error(ErrorCode::InvalidArgument, {destination.string()},
              "is the name of " + found + "; " + written + " would be written there",
              std::move(hint));
}

bool is_suffix(const std::string& text) {
  return text == ".index" ||
         std::ranges::find(kSuffixes, text, &Suffix::text) != std::end(kSuffixes);
}

// out/model of out/model.safetensors.index.json.
fs::path without_suffixes(fs::path path) {
  while (is_suffix(path.extension().string())) path.replace_extension();
  return path;
}

std::string what_is_written(const Target& target) {
  const std::string format(name(target.format));
  if (!is_single_file(target)) return "a folder (" + format + ")";
  return target.format == Format::Torch ? "a torch.save file" : "a " + format + " file";
}

}  // namespace

bool is_single_file(const Target& target) {
  return target.files.size() == 1 && target.files[0].path.empty();
}

void check_destination_name(const Target& target, const fs::path& destination) {
  const bool is_file = is_single_file(target);
  const std::string written = what_is_written(target);
  if (is_file && !destination.has_filename()) {
    refuse(destination, "a folder", written,
           "name the file: " +
               escaped((destination /
                        (target.format == Format::Torch ? "model.pt" : "model.safetensors"))
                           .string()));
  }
  const std::string suffix = destination.extension().string();
  const auto found = std::ranges::find(kSuffixes, suffix, &Suffix::text);
  if (found == std::end(kSuffixes)) return;
  const fs::path stem = without_suffixes(destination);
  if (!is_file) {
    refuse(destination, found->of, written, "give a folder's name: " + escaped(stem.string()));
  }
  if (target.format == Format::Torch && !found->may_be_torch_file) {
    refuse(destination, found->of, written,
           "name it " + escaped(stem.string()) + ".pt, or choose another --to");
  }
}

}  // namespace ckpt
