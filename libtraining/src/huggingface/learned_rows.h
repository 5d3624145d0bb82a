#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "huggingface/index_rule.h"
#include "huggingface/learned_pairs.h"
#include "huggingface/name_table.h"

// Rows of a table, out of how vectors of the folder's tensors stand in the model's.
namespace optim {

// How a tensor of the folder is made of the model's vectors.
struct VectorRule {
  std::vector<std::string> sources;  // patterns of names, by IndexPart::source
  std::vector<ckpt::Extents> shapes;
  IndexRule rule;
  bool of_columns = false, to_columns = false;
  uint32_t expert_count = 0;  // of those that are stacked; 0: none are
  ckpt::Extents target;       // shape
  uint64_t alike_count = 0;   // of its vectors, those that content does not tell from others
};

// Two sides of which a rule is to be found: streams the tensors once more.
struct LearnedSides {
  const std::vector<LearnedTensor>& model;
  const ckpt::PayloadSource& model_payloads;
  const ckpt::PayloadSource& folder_payloads;
};
std::optional<VectorRule> find_vector_rule(const LearnedTensor& tensor, const ContentMatch& match,
                                           const LearnedSides& sides);
// Of a matrix that is the model's as it is.
VectorRule whole_rule(const LearnedTensor& source);

// Rows and tokens of the vocabulary, which have names in a table.
struct LearnedVocabulary {
  const ModelRules& rules;
  uint64_t rows = 0, tokens = 0;
};

struct LearnedRow {
  TensorRow row;
  std::map<std::string, std::string> let = {};  // sizes of its axes
};
// nullopt: the schema has no words for it.
std::optional<LearnedRow> row_of(const VectorRule& rule, const LearnedVocabulary& vocabulary);
// Of one vector for each of a matrix, such as its bias.
std::optional<LearnedRow> row_of_bias(VectorRule rule, const LearnedVocabulary& vocabulary);
// Of a tensor that is the model's as it is.
LearnedRow row_of_whole(const std::string& source, const ckpt::Extents& shape,
                        const LearnedVocabulary& vocabulary);

}  // namespace optim
