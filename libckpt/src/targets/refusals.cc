// Conversions whose result would look like a checkpoint and be none.
#include "targets/refusals.h"

#include <map>

#include <ckpt/error.h>
#include <ckpt/tensor_parts.h>

#include "targets/conservation.h"

namespace ckpt {
namespace {

constexpr const char* kPartHint =
    "--to torch carries it unchanged, --exclude leaves it out; for whole tensors load the files of "
    "all ranks with the program that wrote them and save with torch.distributed.checkpoint, whose "
    "folder ckpt-convert reads";

using PartsByTensor = std::map<std::string, const TensorPart*, std::less<>>;

PartsByTensor by_tensor(const std::vector<TensorPart>& parts) {
  PartsByTensor known;
  for (const TensorPart& part : parts) {
    for (const std::string& tensor : part.tensors) known.emplace(tensor, &part);
  }
  return known;
}

// Of a torch.save file: its tensors may be shards by their names and storages alone.
std::vector<TensorPart> parts_of(const Checkpoint& source) {
  const Catalog& catalog = source.catalog();
  const bool is_file = catalog.format == Format::Torch && catalog.files.size() == 1;
  const Document* const document = is_file ? source.document(catalog.files[0].path) : nullptr;
  return document == nullptr ? std::vector<TensorPart>() : parts_in(document->tree.root());
}

std::string text_of(const char* verb, const TensorPart& part, std::string_view target) {
  return verb + part.words + "; " + std::string(target) +
         (part.is_whole ? " holds plain tensors alone"
                        : " cannot say so, and it would be taken for the whole");
}

// Why an entry is refused, for what it is or has in it; empty where it is not.
std::string refusal_of(const PlainEntry& entry, const PartsByTensor& known,
                       std::string_view target) {
  if (entry.tensor) {
    const auto part = known.find(entry.tensor->key);
    return part == known.end() ? "" : text_of("is a ", *part->second, target);
  }
  const std::vector<TensorPart> inside = parts_in(entry.document->tree.value(entry.node));
  if (inside.empty()) return {};
  return text_of(inside.front().pointer.empty() ? "is a " : "holds a ", inside.front(), target);
}

}  // namespace

void refuse_parts(const PlainState& state, const Checkpoint& source, std::string_view target) {
  const std::vector<TensorPart> parts = parts_of(source);
  const PartsByTensor known = by_tensor(parts);
  const PlainEntry* first = nullptr;
  std::string words;
  size_t count = 0;
  for (const PlainEntry& entry : state.entries) {
    std::string found = refusal_of(entry, known, target);
    if (found.empty()) continue;
    if (count++ != 0) continue;
    first = &entry;
    words = std::move(found);
  }
  if (first == nullptr) return;
  const std::string others = count == 1 ? "" : "; so are " + std::to_string(count - 1) + " more";
  throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = first->key},
              words + others, kPartHint);
}

void refuse_empty(const Target& target, std::string_view called) {
  if (holdings_of(target) != Holdings()) return;
  const std::string why = target.not_carried.empty() ? ""
                                                     : ": " + target.not_carried.back().what +
                                                           ": " + target.not_carried.back().reason;
  throw Error(ErrorCode::Unsupported, {},
              "nothing that is selected can be stored in " + std::string(called) +
                  "; the result would be empty" + why,
              "--to torch holds all of it, --to torch_dist tensors and objects; ckpt-inspect show "
              "prints it");
}

}  // namespace ckpt
