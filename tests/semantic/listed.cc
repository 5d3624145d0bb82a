#include "semantic/listed.h"

#include <algorithm>
#include <array>

#include <ckpt/error.h>

#include "semantic/encode_state.h"

namespace semantic {
namespace {

bool is_attribute(const Place& place) { return !place.empty() && place.back().starts_with("@"); }

std::array<std::string, 2> forms_of(const Place& place) { return {pointer(place), dotted(place)}; }

constexpr std::string_view kAttributesOf = "attributes of ";

// "its A, the class B, its C; DCP holds plain tensors" names the attributes A and C.
bool names_part(const std::string& reason, const std::string& part) {
  const std::string list = ", " + reason.substr(0, reason.rfind("; ")) + ", ";
  return list.find(", " + part + ", ") != std::string::npos;
}

// An entry about what a tensor is besides its elements covers what it names, and no more.
bool names_attribute(const ckpt::NotCarried& entry, const Place& place, Aspect aspect) {
  const auto is_of = [&](const Place& tensor) {
    return entry.what == std::string(kAttributesOf) + dotted(tensor);
  };
  if (aspect == Aspect::RequiresGrad && is_of(place)) {
    return names_part(entry.reason, "its requires_grad");
  }
  if (!is_attribute(place)) return false;
  const std::string name = ckpt::escaped(place.back().substr(1));
  return is_of(Place(place.begin(), place.end() - 1)) && names_part(entry.reason, "its " + name);
}

// Entries about one aspect say nothing about the others.
bool concerns(const ckpt::NotCarried& entry, const Place& place, Aspect aspect) {
  if (entry.what.starts_with("storage of ") || entry.what.starts_with(kAttributesOf)) return false;
  if (entry.what.starts_with("key ")) return aspect == Aspect::KeyType;
  const bool of_type = entry.reason.find("becomes a dict") != std::string::npos;
  return !of_type || aspect == Aspect::Type || is_attribute(place);
}

bool names(const ckpt::NotCarried& entry, const Place& place, Aspect aspect) {
  if (!concerns(entry, place, aspect)) return false;
  return std::ranges::any_of(forms_of(place), [&](const std::string& form) {
    return entry.what == form || entry.what.ends_with(" " + form);
  });
}

bool is_listed(const FactName& fact, const NotCarriedList& listed) {
  const auto& [place, aspect] = fact;
  for (const ckpt::NotCarried& entry : listed) {
    if (names(entry, place, aspect) || names_attribute(entry, place, aspect)) return true;
    if (!is_attribute(place)) continue;
    const Place holder(place.begin(), place.end() - 1);
    const bool with_attributes = entry.reason.find("attributes") != std::string::npos ||
                                 entry.reason.starts_with("an empty mapping");
    if (with_attributes && names(entry, holder, Aspect::Type)) return true;
  }
  return false;
}

bool starts_with(const Place& place, const Place& front) {
  return place.size() >= front.size() && std::equal(front.begin(), front.end(), place.begin());
}

// A list keeps its other elements' places by None where an element was lost.
bool fills_a_hole(const FactName& name, const std::string& fact, const Facts& expected) {
  static const std::string kNone = object_fact(encoding_digest(Node()));
  const auto below = expected.lower_bound({name.first, Aspect::Value});
  return fact == kNone && below != expected.end() && starts_with(below->first.first, name.first);
}

// A mapping stays where all that it held was lost, each of which is listed or found.
bool is_left_empty(const FactName& name, const std::string& fact, const Facts& expected) {
  const auto below = expected.lower_bound({name.first, Aspect::Value});
  return fact == kEmptyMapping && below != expected.end() &&
         starts_with(below->first.first, name.first);
}

}  // namespace

std::vector<std::string> unlisted(const Facts& expected, const Facts& actual,
                                  const NotCarriedList& listed, bool values_only) {
  std::vector<std::string> found;
  for (const auto& [name, fact] : expected) {
    if (values_only && (name.second != Aspect::Value || is_attribute(name.first))) continue;
    const auto there = actual.find(name);
    if (there != actual.end() && there->second == fact) continue;
    if (is_listed(name, listed)) continue;
    found.push_back(pointer(name.first) + ": " + fact + " | " +
                    (there == actual.end() ? "nothing" : there->second));
  }
  for (const auto& [name, fact] : actual) {
    if (expected.contains(name) || fills_a_hole(name, fact, expected)) continue;
    if (is_left_empty(name, fact, expected)) continue;
    found.push_back(pointer(name.first) + ": nothing | " + fact);
  }
  return found;
}

bool mentions(const NotCarriedList& listed, const std::string& word) {
  const auto is_letter = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (const ckpt::NotCarried& entry : listed) {
    const std::string text = " " + entry.what + ": " + entry.reason + " ";
    for (size_t at = text.find(word); at != text.npos && !word.empty();
         at = text.find(word, at + 1)) {
      if (!is_letter(text[at - 1]) && !is_letter(text[at + word.size()])) return true;
    }
  }
  return false;
}

}  // namespace semantic
