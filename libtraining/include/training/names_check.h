#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <training/convert.h>
#include <training/export.h>

namespace optim {

// Whether a table of names explains a checkpoint and a Hugging Face folder of the same model.
struct NamesCheck {
  struct Difference {
    std::string key, problem;
  };
  std::string names;  // as ConvertReport's
  uint64_t equal_count = 0;
  std::vector<Difference> differences;  // by key of the folder
};

// Compares each tensor of the export, to the bit, with the folder's of that name. Throws as
// convert() with options.hugging_face does; Unsupported for a folder without safetensors.
TRAINING_EXPORT NamesCheck check_names(const std::filesystem::path& checkpoint,
                                       const std::filesystem::path& folder,
                                       const ConvertOptions& options);

}  // namespace optim
