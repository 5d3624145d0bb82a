#include "step/tensors/state_fields.h"

#include <algorithm>
#include <utility>

#include <ckpt/archive_builder.h>
#include <ckpt/checkpoint.h>
#include <ckpt/execute.h>
#include <ckpt/target.h>
#include <optim/checkpoint_bridge.h>

#include "rules/refuse_key.h"

namespace optim {
namespace {

// Tensors in memory as a source of payload: each is a "file" of its own. Tensors must not change
// while they are read.
class TensorPayloads final : public ckpt::PayloadSource {
 public:
  // The tensor is kept alive; it is copied if it is not contiguous.
  ckpt::StorageRegion add(const at::Tensor& tensor) {
    const auto file = static_cast<uint32_t>(tensors_.size());
    tensors_.push_back(
        tensor.cpu().contiguous());  // from a GPU: a copy; read_bytes() is the host's
    return {.file = file, .bytes = {0, static_cast<uint64_t>(tensors_.back().nbytes())}};
  }

  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override { return {region}; }
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    const auto* const bytes =
        static_cast<const std::byte*>(tensors_[located.file].const_data_ptr());
    std::copy_n(bytes + located.bytes.offset_bytes + offset_bytes, out.size(), out.data());
  }
  std::string file_name(uint32_t) const override { return "a tensor in memory"; }

 private:
  std::vector<at::Tensor> tensors_;
};

// What a StateValue becomes in a pickle. State dicts are our own and a few levels deep.
class Pickler {
 public:
  Pickler(ckpt::ArchiveBuilder& builder, TensorPayloads& payloads)
      : builder_(builder), payloads_(payloads) {}

  ckpt::NodeId add(const StateValue& value) { return std::visit(*this, value.content()); }

  ckpt::NodeId operator()(std::monostate) { return tree().none(); }
  ckpt::NodeId operator()(bool value) { return tree().boolean(value); }
  ckpt::NodeId operator()(int64_t value) { return tree().integer(value); }
  ckpt::NodeId operator()(double value) { return tree().real(value); }
  ckpt::NodeId operator()(const std::string& value) { return tree().str(value); }
  ckpt::NodeId operator()(const Bytes& value) { return tree().bytes(value.content); }
  ckpt::NodeId operator()(const StateList& list) {
    const ckpt::NodeId node = tree().list();
    for (const StateValue& entry : list) tree().append(node, add(entry));
    return node;
  }
  ckpt::NodeId operator()(const StateDict& dict) {
    const ckpt::NodeId node = tree().dict();
    for (const auto& [key, entry] : dict) {
      const auto* const text = std::get_if<std::string>(&key);
      const ckpt::NodeId key_node =
          text != nullptr ? tree().str(*text) : tree().integer(std::get<int64_t>(key));
      tree().set_item(node, key_node, is_betas(key) ? add_tuple(entry) : add(entry));
    }
    return node;
  }
  ckpt::NodeId operator()(const TensorHandle& handle) {
    const at::Tensor tensor = tensor_of(handle);
    const ckpt::Extents shape(tensor.sizes().begin(), tensor.sizes().end());
    return builder_.add_tensor(handle.dtype, shape, ckpt::StorageSource{payloads_.add(tensor)});
  }
  template <class Sharded>
  ckpt::NodeId operator()(const Sharded& /*unused*/) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {},
                      "a sharded state dict cannot be saved in one file");
  }

 private:
  ckpt::ValueTree& tree() { return builder_.tree(); }

  // The one tuple that torch's optimizers keep; state dicts here know lists only.
  static bool is_betas(const StateKey& key) { return key == StateKey("betas"); }
  ckpt::NodeId add_tuple(const StateValue& pair) {
    const auto* const list = pair.get_if<StateList>();
    if (list == nullptr || list->size() != 2) return add(pair);
    return tree().tuple({add(list->front()), add(list->back())});
  }

  ckpt::ArchiveBuilder& builder_;
  TensorPayloads& payloads_;
};

constexpr int kDepthMax = 16;  // of a state dict; deeper files are none

class Unpickler {
 public:
  Unpickler(const ckpt::Checkpoint& checkpoint, const ckpt::Document& document, std::string file)
      : checkpoint_(checkpoint), document_(document), file_(std::move(file)) {}

  StateValue read(const ckpt::Value& value, int depth = 0) const {
    if (depth > kDepthMax) refuse("is nested too deeply for a state dict");
    if (const auto view = ckpt::as_tensor(value)) return handle_of(load(*view));
    switch (value.kind()) {
      case ckpt::Kind::None: return {};
      case ckpt::Kind::Bool: return value.as_bool();
      case ckpt::Kind::Int: return value.as_int();
      case ckpt::Kind::Float: return value.as_float();
      case ckpt::Kind::Str: return std::string(value.text());
      case ckpt::Kind::List:
      case ckpt::Kind::Tuple: return read_list(value, depth);
      case ckpt::Kind::Dict: return read_dict(value, depth);
      default: refuse("holds a value of a type that an optimizer's state dict cannot have");
    }
  }

 private:
  StateValue read_list(const ckpt::Value& value, int depth) const {
    StateList list;
    for (size_t i = 0; i < value.size(); ++i) list.push_back(read(value[i], depth + 1));
    return list;
  }

  StateValue read_dict(const ckpt::Value& value, int depth) const {
    StateDict dict;
    for (const auto& [key, entry] : ckpt::items_of(value)) {
      const bool is_text = key.is(ckpt::Kind::Str);
      if (!is_text && !key.is(ckpt::Kind::Int))
        refuse("has a key that is neither a string nor a number");
      StateKey name = is_text ? StateKey(std::string(key.text())) : StateKey(key.as_int());
      put(dict, std::move(name), read(entry, depth + 1));
    }
    return dict;
  }

  at::Tensor load(const ckpt::TensorView& view) const {
    const ckpt::StorageRecord* const storage = document_.find_storage(view.storage_key);
    if (storage == nullptr) refuse("has no storage '" + view.storage_key + "'");
    ckpt::TensorEntry entry;
    entry.dtype = view.dtype;
    entry.shape = view.shape;
    ckpt::Chunk chunk;
    chunk.box = ckpt::whole(view.shape);
    chunk.region = storage->region;
    chunk.view =
        std::make_shared<const ckpt::StridedView>(ckpt::StridedView{view.offset, view.strides});
    entry.chunks.push_back(std::move(chunk));
    return load_tensor(checkpoint_, entry);
  }

  [[noreturn]] void refuse(const std::string& problem) const {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = file_}, problem);
  }

  const ckpt::Checkpoint& checkpoint_;
  const ckpt::Document& document_;
  std::string file_;
};

}  // namespace

const StateDict& as_dict(const StateValue& value, std::string_view path) {
  if (const auto* dict = unwrapped(value).get_if<StateDict>()) return *dict;
  refuse_key(path, "is not a dict");
}

const StateList& as_list(const StateValue& value, std::string_view path) {
  if (const auto* list = unwrapped(value).get_if<StateList>()) return *list;
  refuse_key(path, "is not a list");
}

const StateValue& at(const StateDict& dict, const StateKey& key, std::string_view path) {
  if (const StateValue* const value = find(dict, key)) return *value;
  const auto* const text = std::get_if<std::string>(&key);
  refuse_key(path, "has no '" + (text ? *text : std::to_string(std::get<int64_t>(key))) + "'");
}

double number(const StateValue& value, std::string_view path) {
  if (const auto* flag = value.get_if<bool>()) return *flag ? 1 : 0;
  if (const auto* whole = value.get_if<int64_t>()) return static_cast<double>(*whole);
  if (const auto* real = value.get_if<double>()) return *real;
  refuse_key(path, "is not a number");
}

at::Tensor tensor(const StateValue& value, std::string_view path) {
  if (const auto* handle = value.get_if<TensorHandle>()) return tensor_of(*handle);
  refuse_key(path, "is not a tensor");
}

const StateValue& unwrapped(const StateValue& value) {
  const auto* const local = value.get_if<LocalNonpersistentObject>();
  return local != nullptr ? local->unwrap() : value;
}

void write_state_file(const std::filesystem::path& file, const StateValue& state) {
  ckpt::ArchiveBuilder builder;
  TensorPayloads payloads;
  const ckpt::NodeId root = Pickler(builder, payloads).add(state);
  ckpt::Target target;
  target.files.emplace_back();
  target.files.back().archives.push_back(builder.finish(file.stem().string(), root));
  ckpt::StagingOptions options;
  options.single_file = true;
  ckpt::Staging staging = ckpt::Staging::create(file, options);
  ckpt::execute(target, ckpt::make_plan(target), payloads, staging);
  staging.commit();
}

StateValue read_state_file(const std::filesystem::path& file) {
  const ckpt::Checkpoint checkpoint = ckpt::Checkpoint::open(file);
  const std::string& path = checkpoint.catalog().files.front().path;
  const ckpt::Document* const document = checkpoint.document(path);
  if (document == nullptr) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = file.string()},
                      "is not a torch.save file");
  }
  return Unpickler(checkpoint, *document, file.string()).read(document->tree.root());
}

}  // namespace optim
