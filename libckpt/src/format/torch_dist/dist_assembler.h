#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "format/torch_dist/dist_collector.h"
#include "format/torch_dist/dist_items.h"

namespace ckpt {

// What the opcodes of a .metadata build, in terms of items. nullopt or false: not as real writers
// have it.
class DistAssembler {
 public:
  DistAssembler();

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
  // Which field has this name; nullopt: none.
  static std::optional<uint8_t> place_of(DistClass known, const DistItem& name);
  bool build_from(DistItem& object, const Fields& fields);

  std::optional<DistMetadata> finish(const DistItem& root);

 private:
  using Pairs = std::span<const DistItem>;  // a key, a value, a key, ...

  static std::span<const uint32_t> names_of(DistClass known);  // ids of texts
  static std::optional<Fields> fields_of(DistClass known, Pairs pairs);
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
  bool add_entries(DistItem& dict, std::span<const DistItem> keys_and_values);
  bool add_places(DistItem& dict, std::span<const DistItem> keys_and_values);

  static bool build_chunk(DistItem& object, const Fields& fields);
  static bool build_index(DistItem& object, const Fields& fields);
  bool build_info(DistItem& object, const Fields& fields);
  bool build_properties(DistItem& object, const DistItem& state);
  bool build_tensor(DistItem& object, const Fields& fields);
  bool build_metadata(DistItem& object, const DistItem& state);

  DistValues values_;
  DistCollector collector_;
  uint32_t empty_tuple_ = 0;
  std::vector<DistItem> pairs_;              // keys and values of Dict items
  std::vector<ByteRange> ranges_;            // of Info items
  std::vector<uint64_t> numbers_;            // of a tuple
  std::vector<DistEntries::Entry> unnamed_;  // Tensor items that no entry has named yet
  std::vector<uint32_t> keys_;               // of entries, in their order
  std::vector<std::string> files_;
  std::vector<uint32_t> file_of_path_;  // [path] + 1; 0: not met
  bool has_places_ = false;
  std::optional<NodeId> root_;
};

}  // namespace ckpt
