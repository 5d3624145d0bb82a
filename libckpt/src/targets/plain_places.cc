// Whether flattened entries can be nested again.
#include <ckpt/error.h>

#include "base/text_map.h"
#include "targets/plain_state.h"

namespace ckpt {
namespace {

enum class Place : uint8_t { Value, Mapping, List };

const char* text_of(Place place) {
  static constexpr const char* kTexts[] = {"a value", "a mapping", "a list"};
  return kTexts[static_cast<size_t>(place)];
}

class Places {
 public:
  void add(const PlainEntry& entry) {
    std::string prefix;
    for (size_t i = 0; i < entry.path.size(); ++i) {
      take(entry, prefix, entry.path[i].is_index ? Place::List : Place::Mapping);
      const std::string& text = entry.path[i].text;
      prefix += std::to_string(text.size()) + ':' + text;
    }
    if (!values_.insert(prefix).second) refuse(entry, Place::Value, Place::Value);
    take(entry, prefix, Place::Value);
  }

 private:
  void take(const PlainEntry& entry, const std::string& prefix, Place place) {
    const Place known = places_.try_emplace(prefix, place).first->second;
    if (known != place) refuse(entry, place, known);
  }

  [[noreturn]] static void refuse(const PlainEntry& entry, Place wanted, Place known) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = entry.key},
                std::string("its path needs ") + text_of(wanted) + " where another key's has " +
                    text_of(known) + ", so the two could not be read back",
                "--rename gives one of them another name");
  }

  TextMap<Place> places_;
  TextSet values_;
};

}  // namespace

void check_places(const PlainState& state) {
  Places places;
  for (const PlainEntry& entry : state.entries) {
    if (!entry.is_empty_mapping) places.add(entry);
  }
}

}  // namespace ckpt
