#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/error.h>

#include "format/location/location.h"

namespace ckpt {

// Which elements of a rank's flat tensor are which of a parameter, in row-major order. Pure.
struct FlatPart {
  size_t rank = 0, group = 0;  // of the flat tensor
  uint64_t offset = 0;         // in it
  uint64_t first = 0, count = 0;
};
struct FlatParam {
  std::string name;
  Extents shape;
  std::vector<FlatPart> parts;
};

struct NamedShape {
  std::string name;
  Extents shape;
  uint64_t padding = 0;  // elements behind it
};
using FlatLengths = std::vector<std::vector<uint64_t>>;  // by rank, then by group; empty: not known

// A group's parameters behind each other, cut into one part for each rank (ZeRO-1, ZeRO-2). The
// ranks behind one that is not known have parts that are not known.
std::vector<FlatParam> cut_groups(std::span<const std::vector<NamedShape>> groups,
                                  const FlatLengths& lengths);
// Each parameter cut into one part for each rank, which has those of all parameters behind each
// other, in groups (ZeRO-3).
std::vector<FlatParam> cut_params(std::span<const std::vector<NamedShape>> groups,
                                  const FlatLengths& lengths);

// How many elements parameters take: of one group of all ranks, of one rank.
uint64_t count_of_group(const std::vector<NamedShape>& group);
uint64_t count_of_rank(std::span<const std::vector<NamedShape>> groups, uint64_t ranks);

// The parameter out of flat tensors, of which nullptr is not known.
TensorEntry tensor_of_parts(const FlatParam& param, DType dtype,
                            const std::function<const TensorEntry*(const FlatPart&)>& flat);

// A file of one of DeepSpeed's ranks.
struct RankDocument {
  std::string name;
  const Document* document = nullptr;  // null: the file lacks something
  Value root() const { return document->tree.root(); }
};

// The files of one save, what is asked of them, and whether they are of one save.
class DeepSpeedFiles {
 public:
  DeepSpeedFiles(const Location& location, const Limits& limits, Contents& contents)
      : location_(location), limits_(limits), contents_(contents) {}

  static constexpr std::string_view kUniversal = "zero";
  static constexpr std::string_view kWholeModel = "mp_rank_00_model_states.pt";
  static constexpr std::string_view kOptimizerSuffix = "_mp_rank_00_optim_states.pt";
  static constexpr std::string_view kModelSuffix = "_mp_rank_00_model_states.pt";  // of ZeRO-3

  // Throws Unsupported for what more than data parallelism writes: experts, pipelines, slices.
  void refuse_other_forms() const;
  void refuse_incomplete_unless_allowed() const;
  bool lacks_something() const { return !lacking_files(contents_.catalog).empty(); }
  [[noreturn]] void refuse(const std::string& file, const std::string& key, std::string problem,
                           ErrorCode code = ErrorCode::Unsupported) const;
  bool has(std::string_view name) const;
  std::vector<std::string> list(const std::string& folder) const;

  RankDocument open(const std::string& name);
  // One for each rank: so many, or as the first file of an optimizer says. Those that are missing
  // lack, and one too many.
  std::vector<RankDocument> open_ranks(std::string_view suffix,
                                       std::optional<uint64_t> count = std::nullopt);

  // --- of an optimizer's file ---
  Value optimizer_state(const RankDocument& file) const;
  int zero_stage(const RankDocument& file) const;
  std::optional<Value> base_state(const RankDocument& file) const;
  std::optional<Value> param_groups(const RankDocument& file) const;
  // The numbers of flat tensors among the optimizer's parameters, group by group.
  std::vector<int64_t> param_numbers(const RankDocument& file) const;

  // --- of a model's file ---
  std::optional<Value> in_model(const RankDocument& model, const char* name) const;
  // Of trained parameters, group by group; padding as an optimizer's file says, where there is one.
  std::vector<std::vector<NamedShape>> shapes(const RankDocument& model,
                                              const RankDocument* optimizer) const;

  // What ranks have alike differs in files of another save: they then lack something.
  void compare_optimizers(const std::vector<RankDocument>& files,
                          const std::vector<int64_t>& param_numbers);
  void compare_models(const std::vector<RankDocument>& files);
  // Ranks of ZeRO-1 and 2 say which elements of which parameters are theirs.
  void compare_mappings(const std::vector<RankDocument>& files,
                        const std::vector<FlatParam>& params);
  void find_renamed();
  void tell(const std::string& file, std::string lack);

  Contents& contents() { return contents_; }

 private:
  uint64_t partition_count(const RankDocument& file) const;
  std::optional<Value> base_optimizer(const RankDocument& file) const;
  uint64_t padding_behind(const RankDocument& file, size_t group, size_t param) const;
  void compare(const std::vector<RankDocument>& files, const std::string& name,
               const std::function<std::optional<Value>(const RankDocument&)>& get);

  const Location& location_;
  const Limits& limits_;
  Contents& contents_;
};

// Whether a folder has such files.
bool holds_deepspeed(const Folder& source, const std::filesystem::path& folder);

}  // namespace ckpt
