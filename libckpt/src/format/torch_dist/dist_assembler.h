#pragma once

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "format/torch_dist/dist_collector.h"
#include "format/torch_dist/dist_items.h"

namespace ckpt {

// What the opcodes of a .metadata build, in terms of items. nullopt or false: not as real writers
// have it.
class DistAssembler {
 public:
  // Takes what the catalog needs, as it comes, and leaves none.
  using Deliver = std::function<void(DistPieces&)>;
  explicit DistAssembler(Deliver deliver);

  DistValues& values() { return values_; }
  uint32_t empty_tuple() const { return empty_tuple_; }

  std::optional<DistItem> tuple(std::span<const DistItem> elements);
  std::optional<DistItem> object(Construction construction, const DistItem& callable,
                                 const DistItem& args);
  bool append(DistItem& list, std::span<const DistItem> elements);
  bool set_items(DistItem& dict, std::span<DistItem> keys_and_values);  // changes its values
  // Gives the object its state; a known class's object becomes what it means.
  bool build(DistItem& object, const DistItem& state);

  // What a known class's object says, in an order of its own; None where it says nothing.
  using Fields = std::array<DistItem, 4>;
  using FieldOrder = std::array<uint8_t, std::tuple_size_v<Fields>>;
  // Which field each of these names and values is; nullopt where one is unknown, or there twice.
  static std::optional<FieldOrder> field_order(DistClass known, std::span<const DistItem> pairs);
  static Fields in_order(std::span<const DistItem> pairs, const FieldOrder& order);
  bool build_from(DistItem& object, const Fields& fields);

  // Delivers what is not delivered yet.
  void flush();
  // What the pieces do not say: the files and the rest.
  std::optional<DistMetadata> finish(const DistItem& root);

 private:
  using Pairs = std::span<const DistItem>;  // a key, a value, a key, ...

  static std::span<const uint32_t> names_of(DistClass known);  // ids of texts
  Pairs pairs_of(const DistItem& dict) const;
  std::optional<NodeId> to_node(const DistItem& item);
  bool drop_pairs(const DistItem& dict);
  // As a dict can hold it: a dict becomes a node.
  bool make_storable(DistItem& item);
  std::optional<NodeId> keys();

  bool store_pairs(DistItem& dict, std::span<DistItem> keys_and_values);
  std::optional<uint32_t> file_of(uint32_t path);
  bool add_entry(const DistItem& key, const DistItem& value);
  bool add_place(const DistItem& index, const DistItem& info);
  void flush_some();
  bool add_entries(DistItem& dict, std::span<const DistItem> keys_and_values);
  bool add_places(DistItem& dict, std::span<const DistItem> keys_and_values);

  static bool build_chunk(DistItem& object, const Fields& fields);
  static bool build_index(DistItem& object, const Fields& fields);
  bool build_info(DistItem& object, const Fields& fields);
  bool build_properties(DistItem& object, const DistItem& state);
  bool build_tensor(DistItem& object, const Fields& fields);
  bool build_metadata(DistItem& object, const DistItem& state);

  Deliver deliver_;
  DistValues values_;
  uint32_t empty_tuple_ = 0;
  std::vector<DistItem> pairs_;               // keys and values of Dict items
  std::vector<DistPieces::ChunkBox> chunks_;  // of List items
  std::vector<ByteRange> ranges_;             // of Info items
  std::vector<uint64_t> numbers_;             // of a tuple
  std::deque<DistPieces::Tensor> unnamed_;    // Tensor items that no entry has named yet
  uint32_t named_tensors_ = 0;
  std::vector<uint32_t> keys_;  // of entries, in their order
  std::vector<std::string> files_;
  std::vector<uint32_t> file_of_path_;  // [path] + 1; 0: not met
  DistPieces pieces_;                   // not delivered yet
  bool has_places_ = false;
  std::optional<NodeId> root_;
};

}  // namespace ckpt
