#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/document.h>
#include <ckpt/limits.h>

#include "format/location/location.h"
#include "format/values/rank_tensor.h"

namespace ckpt {

// What torch_checkpointing (0.1.1) writes beside the files of its ranks, where an item can be
// resharded:
//
//   metadata.pkl     a pickle of dicts, versions "1.0" and "2.0": which ranks there are, how
//   tensors
//                    lie on them, which file has an item of a rank, and in which form
//   ITEM_RANK.pt     where no other file is named; also of items that metadata.pkl does not know
//
// Source: distributed_metadata.py, dtensor_metadata.py, default_metadata.py, checkpoint_layout.py.

inline constexpr const char* kRankMetadata = "metadata.pkl";

enum class ItemForm : uint8_t { Torch, Safetensors, Json, Raw };

// An item: "model", and the files of its ranks; empty: the rank has none.
struct RankItem {
  explicit RankItem(std::string item) : name(std::move(item)) {}
  std::string name;
  std::vector<std::string> files = {};         // by rank
  std::map<std::string, ItemForm> forms = {};  // by file; of others Torch
  ItemForm form_of(const std::string& file) const {
    const auto found = forms.find(file);
    return found == forms.end() ? ItemForm::Torch : found->second;
  }
};

class RankMetadata {
 public:
  // Throws Corrupt for what contradicts itself, Unsupported for other versions and forms.
  RankMetadata(const Location& location, const Limits& limits, Contents& contents);

  const std::vector<RankItem>& items() const { return items_; }
  std::string words() const;  // "torch_checkpointing 2.0, files of 4 ranks"

  // Of a form that is no torch.save file: as a document of its own. Names of safetensors stay
  // flat.
  void open(const std::string& file, ItemForm form, Contents& contents) const;

  // What a rank's file has at a pointer.
  struct Held {
    const std::string& item;
    const std::string& pointer;
    uint64_t rank;
    const Value& value;
  };
  // A plain tensor that is a part becomes one; a DTensor must be of the shape that metadata says.
  void place(const Held& held, std::optional<RankTensor>& tensor) const;

 private:
  struct Layout {
    DType dtype = DType::Float32;
    Extents shape;
    bool is_known = false, is_cut = false;  // else each rank has a copy
    struct Shard {
      Box box, inside;  // in the whole, and in the rank's tensor
    };
    // By rank: of plain tensors, as DTensors say theirs.
    std::map<uint64_t, std::vector<Shard>> shards;
  };
  using Layouts = std::map<std::string, Layout>;  // by item and path, steps joined by dots

  void read_version_1(const Value& root);
  void read_version_2(const Value& root);
  void read_groups(const std::string& item, const Value& path, size_t first, const Value& groups);
  void read_group(const Value& group, const std::string& item, const std::string& key,
                  Layout& layout);
  void read_shards(const Value& data, const std::string& key, Layout& layout);
  void read_mesh(const Value& data, const std::string& key, Layout& layout);
  void read_files(const std::string& item, uint64_t rank, const Value& layout);
  RankItem& item_called(const std::string& name);
  void add_other_items();
  [[noreturn]] void corrupt(const std::string& key, std::string problem) const;
  [[noreturn]] void refuse(const std::string& key, std::string problem) const;

  const Location& location_;
  const Limits& limits_;
  std::string version_;
  uint64_t ranks_ = 0;
  std::vector<RankItem> items_;
  Layouts layouts_;
  std::map<std::string, std::set<uint64_t>> holders_;  // ranks that have something, by item
  // Of the group that is read.
  std::string item_;
  std::vector<uint64_t> group_ranks_;
};

bool holds_rank_metadata(const Folder& source, const Location& location);

}  // namespace ckpt
