#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "huggingface/learned_rows.h"

// Tensors of a folder whose names differ in numbers alone, and where each such group comes from:
// by content, by the rows of a weight beside it, by what is left, by words.
namespace optim {

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
  const FolderNumbers& numbers() const { return numbers_; }
  // Patterns of the model that no group comes from.
  std::vector<std::string> left_over() const;
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

}  // namespace optim
