// Rank files of gradients to gradients of whole parameters.
#include <training/gradient_dump.h>

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <training/megatron_folders.h>
#include <training/opened_training.h>

#include "args/value_place.h"
#include "grid/build_state.h"
#include "grid/placement.h"
#include "grid/rank_files.h"
#include "layouts/parts/tensor_parts.h"
#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".pth";
constexpr const char* kInside = "wgrads.pt";  // what the folder that a file seems to be holds

// "mp_rank_00.pth/wgrads.pt": the file itself.
fs::path actual(const fs::path& path) {
  const bool is_inside = path.filename() == kInside && is_gradient_file(path.parent_path());
  return is_inside ? path.parent_path() : path;
}

class DumpSource final : public ckpt::Folder {
 public:
  explicit DumpSource(std::shared_ptr<const ckpt::Folder> disk) : disk_(std::move(disk)) {}

  std::vector<std::string> list(const fs::path& folder) const override {
    if (is_gradient_file(folder)) return {kInside};
    return disk_->list(folder);
  }
  Entry stat(const fs::path& path) const override { return seen(path, disk_->stat(actual(path))); }
  Entry stat_entry(const fs::path& path) const override {
    return seen(path, disk_->stat_entry(actual(path)));
  }
  std::unique_ptr<ckpt::OpenedFile> open(const fs::path& folder, const Name& name) const override {
    const std::string path = actual(name.path).string();
    return disk_->open(folder, {path, path, name.links});
  }
  void check_inside(const fs::path& folder, const std::string& name) const override {
    disk_->check_inside(folder, actual(name).string());
  }
  fs::path resolved(const fs::path& path) const override { return disk_->resolved(path); }

 private:
  static Entry seen(const fs::path& path, Entry entry) {
    const bool is_rank = is_gradient_file(path) && entry.kind == ckpt::EntryKind::File;
    if (is_rank) entry.kind = ckpt::EntryKind::Folder;
    return entry;
  }

  std::shared_ptr<const ckpt::Folder> disk_;
};

std::string file_of(const WorldRank& rank) {
  return rank.folder.substr(0, rank.folder.size() - 1) + std::string(kExtension);
}
std::string stored_name(const std::string& file) { return file + "/" + kInside; }

class DumpReader {
 public:
  DumpReader(const TrainingState& state, const OpenedTraining& dump)
      : state_(state), dump_(dump), chunks_(model_chunks(state.grid.pipeline)) {
    for (const TrainedParam& param : state.params) names_.insert(param.info.name);
  }

  std::vector<TensorRef> run() {
    std::set<std::string> known;
    for (const WorldRank& rank : ranks_of(state_.grid)) {
      if (rank.writes_model && known.insert(file_of(rank)).second) read_rank(rank);
    }
    refuse_left_over(known);
    std::vector<TensorRef> gradients;
    for (const TrainedParam& param : state_.params) gradients.push_back(join(param));
    return gradients;
  }

 private:
  void read_rank(const WorldRank& rank) {
    const Place file{file_of(rank), ""};
    const Document* const document = dump_.document(stored_name(file.file));
    if (document == nullptr) {
      throw Error(ErrorCode::NotFound, {.file = dump_.shown_name(file.file), .key = {}},
                  "this file of the gradients is missing",
                  "they are read at the parallel sizes of the checkpoint");
    }
    const Value root = document->tree.root();
    for (uint32_t i = 0; i < state_.grid.pipeline.chunks_per_stage; ++i) {
      // A chunk without gradients is not in the file.
      const std::string key = "model_chunk" + std::to_string(i);
      const auto model = root.find(key);
      if (model) read_chunk(rank, i, *model, file / key);
    }
  }

  void read_chunk(const WorldRank& rank, uint32_t chunk, const Value& model, const Place& place) {
    const ModelChunk& placed = chunks_[chunk_index(state_.grid.pipeline, chunk, rank.at.pp)];
    const RankPart part = rank_part(state_, state_.grid, placed, rank.at.ep);
    for (const auto& [key, value] : ckpt::items_of(model)) {
      if (!key.is(Kind::Str)) place.corrupt("a name is not a string");
      const Place own = place / key.text();
      const auto name = name_in_model(key.text(), part);
      if (!name || !names_.contains(*name)) {
        own.corrupt("is not of any parameter that this rank has in the checkpoint",
                    "the gradients may be of another model, or of other parallel sizes");
      }
      const TensorEntry* const tensor =
          dump_.catalog().find_tensor(own.pointer, stored_name(own.file));
      if (tensor == nullptr) own.corrupt("is not a tensor");
      tensors_.push_back(*tensor);
      tensors_.back().file = own.file;  // as errors call it
      parts_.add(*name, rank.at.tensor_rank(expert_in(*name).has_value()), tensors_.back());
    }
  }

  void refuse_left_over(const std::set<std::string>& known) const {
    for (const ckpt::FileEntry& file : dump_.catalog().files) {
      const std::string name = actual(file.path).string();
      if (known.contains(name)) continue;
      throw Error(ErrorCode::Corrupt, {.file = dump_.shown_name(name), .key = {}},
                  "is of no rank of the run that wrote the checkpoint",
                  "gradients are read at the parallel sizes of the checkpoint");
    }
  }

  TensorRef join(const TrainedParam& param) const {
    const std::string& name = param.info.name;
    if (parts_.first(name) == nullptr) {
      if (!param.info.requires_grad) return nullptr;
      throw Error(ErrorCode::Corrupt, {.file = dump_.shown_path(), .key = name},
                  "has no gradient in any rank's file");
    }
    const uint32_t ranks = tensor_ranks(state_.grid.sizes, expert_in(name).has_value());
    if (ranks > 1 && !param.sharing.is_known) {
      throw Error(ErrorCode::Unsupported, {.file = dump_.shown_path(), .key = name},
                  "it is not known how tensor-parallel ranks share this parameter");
    }
    parts_.compare_copies(dump_, name, !param.sharing.is_split() || ranks == 1);
    return parts_.join(name, {param.sharing, ranks});
  }

  const TrainingState& state_;
  const OpenedTraining& dump_;
  std::vector<ModelChunk> chunks_;
  std::set<std::string> names_;
  std::deque<TensorEntry> tensors_;
  TensorParts parts_;
};

}  // namespace

bool is_gradient_file(const std::filesystem::path& file) {
  return file.extension() == kExtension &&
         file.filename().string().starts_with(kMegatronFolders.rank_folder_prefix);
}

OpenedTraining open_gradient_dump(const std::filesystem::path& folder, const ckpt::Limits& limits) {
  ckpt::OpenOptions options;
  options.limits = limits;
  options.source = std::make_shared<const DumpSource>(ckpt::source_of(folder));
  return open_checkpoint(folder, std::move(options));
}

std::vector<TensorRef> join_gradient_dump(const TrainingState& state, const OpenedTraining& dump) {
  return DumpReader(state, dump).run();
}

}  // namespace optim
