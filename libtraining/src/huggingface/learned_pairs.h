#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include <ckpt/hash.h>

#include "huggingface/learned_names.h"

// Which tensors of a model a folder's tensor may have come from, by hashes of all of both.
namespace optim {

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
