#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/text_map.h"
#include "targets/plain_state.h"

namespace ckpt {

// Which class and attributes each mapping around entries has: those of the mapping that its entries
// come from. Entries of several, which --rename brings together, give a dict.
class MappingTypes {
 public:
  explicit MappingTypes(const std::vector<PlainEntry>& entries);

  // The mapping in the source; nullopt: a dict, as far as anybody knows.
  std::optional<Value> at(const std::string& place) const;
  // What mappings lose that are brought together.
  const std::vector<NotCarried>& losses() const { return losses_; }
  // Those of a class of their own, by place.
  TextMap<Value> objects() const;

  // Appends a step to a place, which starts as "".
  static void enter(std::string& place, const PathStep& step);

 private:
  void add(const std::string& place, const std::string& pointer, const Value& holder);
  void lose(const std::string& pointer, const Value& mapping);

  TextMap<Value> types_;
  TextSet mixed_;
  std::vector<NotCarried> losses_;
};

}  // namespace ckpt
