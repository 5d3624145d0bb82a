#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ckpt/hash.h>

#include "huggingface/index_rule.h"
#include "huggingface/name_table.h"
#include "model/model_rules.h"

// Tensors of a folder whose names differ in numbers alone, and where each such group comes from:
// by content, by the rows of a weight beside it, by what is left, by words.
namespace optim {

// Which tensors of a model a folder's tensor may have come from, by hashes of all of both.

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

// Rows of a table, out of how vectors of the folder's tensors stand in the model's.

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

struct LearnedGroup {
  enum class Evidence : uint8_t { None, Content, Numbers, WeightRows, LeftOver, Words };
  std::string pattern;
  std::vector<uint32_t> members = {};  // of the folder's tensors
  Evidence evidence = Evidence::None;
  LearnedRow row = {};
  int added = 0;                          // in the folder, to each element
  std::vector<std::string> sources = {};  // patterns of which the model has one, of one part
  std::optional<VectorRule> rule = {};
  std::string problem = {};  // of Evidence::None
};

class LearnedGroups {
 public:
  LearnedGroups(std::vector<LearnedTensor>& folder, const LearnedSides& sides,
                const LearnedVocabulary& vocabulary, uint32_t layer_count);

  // `matches`: of the folder's tensors.
  void explain(const std::vector<ContentMatch>& matches);

  const std::vector<LearnedGroup>& groups() const { return groups_; }
  // Of both sides, several tensors that hold the same, by their patterns: how many.
  std::map<std::set<std::string>, uint64_t> ties() const;

 private:
  using Member = std::pair<uint32_t, uint32_t>;  // layer and expert
  void learn_numbers(const std::vector<ContentMatch>& matches);
  void make_groups();
  void by_content(LearnedGroup& group, const std::vector<ContentMatch>& matches);
  const std::string* pattern_of(const ContentMatch& match, LearnedGroup& group) const;
  void add_whole(LearnedGroup& group, uint32_t member, const ContentMatch& match);
  void add_vectors(LearnedGroup& group, const std::vector<ContentMatch>& matches);
  void explain_biases();
  bool is_bias(const LearnedGroup& weight, const LearnedRow& row, const LearnedGroup& group) const;
  void explain_constants();
  std::optional<int> shift_of(const LearnedGroup& group, const std::string& source) const;
  void take(LearnedGroup& group, const std::string& source, LearnedGroup::Evidence evidence);
  bool take_only_pairs(LearnedGroup::Evidence evidence);
  bool take_by_words();
  std::vector<std::string> candidates(const LearnedGroup& group) const;
  std::set<Member> members_of(const std::vector<LearnedTensor>& side,
                              const std::vector<uint32_t>& members) const;

  std::vector<LearnedTensor>& folder_;
  const LearnedSides& sides_;
  const LearnedVocabulary& vocabulary_;
  uint32_t layer_count_;
  FolderNumbers numbers_;
  std::vector<LearnedGroup> groups_;
  std::map<std::string, std::vector<uint32_t>> model_;  // by pattern
  std::set<std::string> used_;
};

// Groups of a folder's tensors as a table of names: docs/schema/input/name_table.json.
struct LearnedModel {
  const std::vector<LearnedTensor>& folder;
  const ModelRules& rules;
  uint32_t layers = 0, further = 0;  // of the decoder; of multi-token prediction
  nlohmann::json args = {};          // of the checkpoint
  nlohmann::json config = {};        // config.json of the folder
  uint64_t tokens = 0;               // of the vocabulary
};
// Rows that hold for layers of multi-token prediction, too, stand in one with those of the decoder.
// `left_out`: gets fields of config.json and arguments that no expression can say.
nlohmann::json learned_table(const LearnedGroups& groups, const LearnedModel& model,
                             std::vector<std::string>& left_out);

}  // namespace optim
