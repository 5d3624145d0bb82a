#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ckpt/hash.h>

#include "model/model_rules.h"

// Which tensors of a model a folder's tensor may have come from, by hashes of all of both.
namespace optim {

// Numbers of layers and experts in names, for tables that are learned: which are known in the
// model's, and found in the folder's.
struct NameNumbers {
  std::optional<uint32_t> layer, further, expert;  // `further`: of multi-token prediction
  bool operator==(const NameNumbers&) const = default;
  auto operator<=>(const NameNumbers&) const = default;
};
struct NumberedName {
  std::string pattern;  // with {layer}, {mtp} and {expert} in the place of numbers
  NameNumbers numbers;
};

// Of Megatron's modules.
NumberedName numbered_model_name(std::string_view name);
// A pattern, and what Megatron's modules of the other implementation call the same.
std::vector<std::string> names_of_both(const std::string& pattern, const ModelRules& rules);

// Which numbers in keys of a folder are those of layers and experts, by keys whose tensors are
// known to be of one.
class FolderNumbers {
 public:
  explicit FolderNumbers(uint32_t layer_count) : layer_count_(layer_count) {}
  // `either`: it is of one of these.
  void learn(std::string_view key, const std::vector<NameNumbers>& either);
  // Numbers of neither stay as they are.
  NumberedName numbered(std::string_view key) const;

 private:
  uint32_t layer_count_;
  struct Roles {
    // By names whose number it is, by such of which one has it, by those of which none has it.
    unsigned proven = 0, seen = 0, excluded = 0;
  };
  std::map<std::string, Roles> roles_;  // by what stands in front of a number
};

struct LearnedTensor {
  const ckpt::TensorEntry* entry = nullptr;
  std::string name;
  NumberedName numbered = {};
  ckpt::VectorPrint print = {};  // without rows and columns
  bool has_numbers = false;      // of a type that is compared
};

// What content says of a tensor of the folder.
struct ContentMatch {
  enum class Form : uint8_t { None, Whole, Vectors } form = Form::None;
  std::vector<uint32_t> sources = {};  // Whole: any of these, which are equal; Vectors: all
  std::vector<uint32_t> equals = {};   // any of which the source may be, where it is one
  int added = 0;                       // Whole: in the folder
  bool of_columns = false, to_columns = false;  // Vectors: of the model's, of the folder's tensor
  uint64_t vote_count = 0;
};

// All of one side, hashed.
class ContentIndex {
 public:
  ContentIndex(std::vector<LearnedTensor>& model, const ckpt::PayloadSource& payloads);
  // Hashes a tensor of the folder, too.
  ContentMatch match(LearnedTensor& tensor, const ckpt::PayloadSource& payloads) const;

 private:
  struct Vector {
    uint64_t hash;
    uint32_t tensor;
    bool is_column;
  };
  void add_vectors(uint32_t tensor, const ckpt::VectorPrint& print,
                   std::vector<Vector>& vectors) const;
  ContentMatch match_vectors(const ckpt::VectorPrint& print) const;
  const Vector* find(uint64_t hash) const;

  std::vector<LearnedTensor>& model_;
  uint64_t hash_max_ = UINT64_MAX;  // of vectors that are kept: so many that memory is bounded
  std::vector<Vector> vectors_;     // by hash, each once
  std::unordered_map<uint64_t, std::vector<uint32_t>> by_whole_, by_plus_, by_minus_;
};

}  // namespace optim
