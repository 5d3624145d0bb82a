#include <ckpt/catalog.h>

namespace ckpt {
namespace {

// A file and a key are told apart by the NUL that neither path nor lookup holds first.
std::string lookup_key(std::string_view key, std::string_view file) {
  std::string text(file);
  text += '\0';
  text += key;
  return text;
}

template <class Entry>
const Entry* find_entry(const std::vector<Entry>& entries,
                        const std::unordered_map<std::string, uint32_t>& index,
                        const std::string& key) {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &entries[found->second];
}

template <class Entry>
std::unordered_map<std::string, uint32_t> index_of(const std::vector<Entry>& entries) {
  std::unordered_map<std::string, uint32_t> index;
  index.reserve(entries.size());
  for (uint32_t i = 0; i < entries.size(); ++i) {
    index.emplace(lookup_key(entries[i].key, entries[i].file), i);
  }
  return index;
}

}  // namespace

std::string_view name(Format format) {
  switch (format) {
    case Format::Torch: return "torch";
    case Format::TorchDist: return "torch_dist";
    case Format::Safetensors: return "safetensors";
  }
  return "unknown";
}

const TensorEntry* Catalog::find_tensor(std::string_view key, std::string_view file) const {
  return find_entry(tensors, tensor_index_, lookup_key(key, file));
}

const ObjectEntry* Catalog::find_object(std::string_view key, std::string_view file) const {
  return find_entry(objects, object_index_, lookup_key(key, file));
}

void Catalog::index() {
  tensor_index_ = index_of(tensors);
  object_index_ = index_of(objects);
}

}  // namespace ckpt
