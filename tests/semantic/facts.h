#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/document.h>
#include <ckpt/hash.h>

#include "semantic/state.h"

namespace semantic {

// Steps from the root: texts of keys and indices; "@name" for an attribute.
using Place = std::vector<std::string>;

enum class Aspect : uint8_t {
  Value,         // a tensor's type, shape and bytes; an object's encoding; that a mapping is empty
  Type,          // of a mapping that is no dict
  KeyType,       // of a key that is no string
  RequiresGrad,  // of a tensor
};

// What is to be known of a state dict, each part of it once.
using FactName = std::pair<Place, Aspect>;
using Facts = std::map<FactName, std::string>;

// Of what was generated: none of our code has a part in it but SHA-256.
Facts facts_of(const Node& root);

// Which lists of a file are entered; the others are one object.
using EntersList = std::function<bool(const Place&)>;

// Of a torch.save file: its values with everything that Python would see.
Facts facts_of(const ckpt::Checkpoint& checkpoint, const ckpt::Document& document,
               const std::string& file, const EntersList& enters_list);
// The only file's. Lists are entered where `expected` has facts inside them: one that lost an
// element may no longer look like one that DCP enters.
Facts facts_of(const ckpt::Checkpoint& checkpoint, const Facts& expected);

// Of a plain DCP folder: tensors and objects, as hash() sees them.
Facts facts_of_store(const ckpt::Checkpoint& checkpoint);

std::string tensor_fact(ckpt::DType dtype, const ckpt::Extents& shape, const ckpt::Sha256& sha256);
std::string object_fact(const ckpt::Sha256& encoding);
inline constexpr const char* kEmptyMapping = "empty mapping";
// RFC 6901, "/" at the root.
std::string pointer(const Place& place);
// The steps joined by dots: DCP's key.
std::string dotted(const Place& place);

}  // namespace semantic
