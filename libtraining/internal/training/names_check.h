#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <training/convert.h>

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

// A table of names that was found in one model in both forms.
struct NamesLearned {
  struct Note {
    std::string key, text;
  };
  std::string table;  // JSON, as a file for HuggingFaceOptions::names
  // Of the folder's tensors, those that the table makes to the bit, and those that it does not
  // make.
  uint64_t equal_count = 0, missing_count = 0;
  uint64_t row_count = 0;
  std::vector<Note> not_by_content;   // rows, by which content alone does not prove them
  std::vector<Note> ties;             // what holds the same values
  std::vector<Note> unexplained;      // tensors of either side
  std::vector<std::string> left_out;  // fields and arguments that are not in the table
  bool is_whole() const { return unexplained.empty() && missing_count == 0; }
};

// Compares each tensor of the export, to the bit, with the folder's of that name. Throws as
// convert() with options.hugging_face does; Unsupported for a folder without safetensors.
NamesCheck check_names(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                       const ConvertOptions& options);

// By content: which vectors of the one side are in the other, and in which order. No built-in table
// is asked. What it makes of the checkpoint was compared with the folder, byte for byte. Throws as
// check_names(), and Unsupported for a pair that does not belong together.
NamesLearned learn_names(const std::filesystem::path& checkpoint,
                         const std::filesystem::path& folder, const ConvertOptions& options);

}  // namespace optim
