// Flat buffers of a DistributedOptimizer: the input is a list of lies about a sound checkpoint, in
// bucket sizes, offsets, keys, per_bucket_numel, arguments, index maps and fragments. It is read,
// named and verified: one error, or a state whose tensors are covered once.
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>
#include <training/verify.h>

#include <algorithm>
#include <optional>

#include <ckpt/tensor_stream.h>
#include <ckpt/torch_dist_target.h>

#include "fuzz/fuzz.h"
#include "fuzz/patched_archive.h"
#include "support/golden.h"
#include "support/memory_folder.h"

namespace {

using ckpt::DistChunk;
using ckpt::DistObject;
using ckpt::DistSpec;

constexpr const char* kTop = "iter_0000003";
constexpr uint64_t kReadBytesMax = 1 << 16;

// Megatron's arguments that decide how buffers are cut, and over whom.
constexpr std::string_view kArguments[] = {
    "overlap_grad_reduce",
    "ddp_bucket_size",
    "ddp_num_buckets",
    "ddp_pad_buckets_for_high_nccl_busbw",
    "data_parallel_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "world_size",
    "num_layers",
    "use_precision_aware_optimizer",
    "untie_embeddings_and_output_weights",
};

std::filesystem::path golden(const std::string& set) {
  return std::filesystem::path(SHARDWISE_GOLDEN_DIR) / set / "ckpt" / kTop;
}

// A sound checkpoint of torch_dist, of which .metadata is written anew.
struct StoredSet {
  explicit StoredSet(const std::string& set)
      : files(test::MemoryFolder::copy_of(golden(set))), common(archive("common.pt")) {
    const optim::OpenedTraining checkpoint = optim::open_checkpoint(golden(set));
    const ckpt::Catalog& catalog = checkpoint.catalog();
    const auto place_of = [&](const ckpt::StorageRegion& region) {
      return ckpt::DistPlace{catalog.files[region.file].path, region.bytes};
    };
    for (const ckpt::TensorEntry& tensor : catalog.tensors) {
      if (!tensor.file.empty()) continue;
      const auto index = static_cast<uint32_t>(spec.tensors.size());
      spec.tensors.push_back({tensor.key, tensor.dtype, tensor.shape});
      for (const ckpt::Chunk& chunk : tensor.chunks) {
        spec.chunks.push_back(
            {index, 0, chunk.box, {}, std::make_shared<ckpt::DistPlace>(place_of(chunk.region))});
      }
    }
    for (const ckpt::ObjectEntry& object : catalog.objects) {
      if (!object.region) continue;
      spec.objects.push_back({object.key, nullptr, {}, 0, place_of(*object.region)});
      const std::string& file =
          files.content(std::string(kTop) + "/" + place_of(*object.region).path);
      objects.push_back(fuzz::archive_in(file, object.region->bytes));
    }
  }
  fuzz::Archive archive(const std::string& name) {
    const std::string& bytes = files.content(std::string(kTop) + "/" + name);
    return fuzz::archive_in(bytes, {0, bytes.size()});
  }

  test::MemoryFolder files;
  fuzz::Archive common;
  DistSpec spec;
  std::vector<fuzz::Archive> objects;  // of spec
};

// As Megatron-Core up to 0.14 stores optimizer state: a fragment for each layer, flattened.
StoredSet flattened_set() {
  StoredSet set("do_adam_bf16_torch_dist_fully_reshardable_dp2");
  const std::string stored = "optimizer.state.param.";
  const auto grid_of = [](const ckpt::DistTensor& tensor) -> size_t {
    return tensor.key.find(".layers.") == std::string::npos ? 0 : 1;
  };
  for (DistChunk& chunk : set.spec.chunks) {
    const ckpt::DistTensor& tensor = set.spec.tensors[chunk.tensor];
    if (!tensor.key.starts_with("optimizer.state.")) continue;
    const uint64_t elements = ckpt::element_count(chunk.box.sizes);
    for (size_t axis = grid_of(tensor); axis < tensor.shape.size(); ++axis) {
      chunk.box.sizes[axis] = 1;
      chunk.box.offsets[axis] = 0;
    }
    chunk.box.offsets.push_back(0);
    chunk.box.sizes.push_back(elements);
  }
  for (ckpt::DistTensor& tensor : set.spec.tensors) {
    if (!tensor.key.starts_with("optimizer.state.")) continue;
    if (tensor.key.starts_with(stored)) {
      tensor.key = "optimizer.state.fp32_param." + tensor.key.substr(stored.size());
    }
    const ckpt::Extents shape = std::exchange(tensor.shape, {});
    tensor.shape.assign(shape.begin(), shape.begin() + static_cast<ptrdiff_t>(grid_of(tensor)));
    tensor.shape.resize(shape.size(), 1);
    const auto is_its = [&](const DistChunk& chunk) {
      return &set.spec.tensors[chunk.tensor] == &tensor;
    };
    const DistChunk& first = *std::ranges::find_if(set.spec.chunks, is_its);
    tensor.shape.push_back(first.box.sizes.back());
  }
  set.common.replace_text("fully_reshardable", "fully_sharded_model_space");
  return set;
}

class Liar {
 public:
  explicit Liar(fuzz::Input& input) : input_(input) {}

  void tell(const StoredSet& set) {
    spec_ = set.spec;
    common_ = set.common;
    objects_ = set.objects;
    changed_.assign(objects_.size(), false);
    while (!input_.is_at_end()) tell_one();
  }

  test::MemoryFolder folder(const StoredSet& set) {
    test::MemoryFolder files = set.files;
    std::string others;
    for (size_t i = 0; i < objects_.size(); ++i) {
      if (!changed_[i]) continue;
      const std::string bytes = objects_[i].encoded();
      spec_.objects[i].place = {"__8_0.distcp", {others.size(), bytes.size()}};
      others += bytes;
    }
    const std::string top = std::string(kTop) + "/";
    files.put(top + "common.pt", common_.encoded());
    if (!others.empty()) files.put(top + "__8_0.distcp", others);
    files.put(top + ".metadata", ckpt::make_torch_dist_files(spec_).back().bytes);
    return files;
  }

 private:
  void tell_one() {
    const uint8_t what = input_.byte();
    if (what % 16 == 10) return tell_of_arguments();
    if (what % 16 >= 11) return tell_of_object();
    if (spec_.chunks.empty()) return;
    const size_t index = input_.number() % spec_.chunks.size();
    DistChunk& chunk = spec_.chunks[index];
    switch (what % 16) {
      case 0: return lie(spec_.tensors[chunk.tensor].shape);
      case 1: return lie(chunk.box.offsets);
      case 2: return lie(chunk.box.sizes);
      case 3: return void(spec_.chunks.erase(spec_.chunks.begin() + static_cast<ptrdiff_t>(index)));
      case 4: {
        DistChunk other = chunk;
        lie(other.box.offsets);
        return spec_.chunks.push_back(std::move(other));
      }
      case 5: return rename(spec_.tensors[chunk.tensor].key);
      case 6: return cast(spec_.tensors[chunk.tensor].dtype);
      case 7: return move(chunk, &ckpt::ByteRange::offset_bytes);
      case 8: return move(chunk, &ckpt::ByteRange::count_bytes);
      default: return split(index);
    }
  }

  void lie(ckpt::Extents& extents) {
    if (extents.empty()) return;
    uint64_t& extent = extents[input_.byte() % extents.size()];
    extent = input_.lie(extent);
  }

  void move(DistChunk& chunk, uint64_t ckpt::ByteRange::*number) {
    ckpt::DistPlace place = *chunk.place;
    place.bytes.*number = input_.lie(place.bytes.*number);
    chunk.place = std::make_shared<ckpt::DistPlace>(std::move(place));
  }

  void cast(ckpt::DType& dtype) {
    constexpr ckpt::DType kTypes[] = {ckpt::DType::Int16, ckpt::DType::BFloat16,
                                      ckpt::DType::Float32, ckpt::DType::UInt8,
                                      ckpt::DType::Float64};
    dtype = kTypes[input_.byte() % std::size(kTypes)];
  }

  // A number or a word of the key.
  void rename(std::string& key) {
    std::string other = key;
    const size_t at = input_.number() % other.size();
    const uint8_t how = input_.byte();
    if (how % 4 == 0) {
      other.insert(at, 1, static_cast<char>('0' + how / 4 % 10));
    } else if (how % 4 == 1) {
      const size_t digit = other.find_first_of("0123456789", at);
      if (digit == other.npos) return;
      other[digit] = static_cast<char>('0' + how / 4 % 10);
    } else if (how % 4 == 2) {
      other = "chained_" + std::to_string(how / 4 % 3) + "." + other;
    } else {
      other.erase(at, how / 4 % 8 + 1);
    }
    key = other;
  }

  void split(size_t index) {
    DistChunk& chunk = spec_.chunks[index];
    uint64_t& size = chunk.box.sizes.back();
    if (chunk.box.sizes.empty() || size < 2) return;
    DistChunk rest = chunk;
    const uint64_t first = input_.lie(size / 2) % size;
    size = first;
    rest.box.offsets.back() += first;
    rest.box.sizes.back() -= first;
    spec_.chunks.push_back(std::move(rest));
  }

  void tell_of_arguments() {
    const std::string_view name = kArguments[input_.byte() % std::size(kArguments)];
    common_.set_number_behind(name, input_.byte() % 4 == 0, input_.lie(1));
  }

  void tell_of_object() {
    if (objects_.empty()) return;
    const size_t index = input_.number() % objects_.size();
    objects_[index].lie_in_a_number(input_);
    changed_[index] = true;
  }

  fuzz::Input& input_;
  DistSpec spec_;
  fuzz::Archive common_;
  std::vector<fuzz::Archive> objects_;
  std::vector<bool> changed_;
};

// distrib_optim.pt, and the arguments in the model file beside it.
test::MemoryFolder flat_files(fuzz::Input& input) {
  static const test::MemoryFolder sound =
      test::MemoryFolder::copy_of(golden("do_adam_bf16_torch_dp2"));
  test::MemoryFolder files = sound;
  const auto archive = [&](const char* name) {
    const std::string& bytes = files.content(std::string(kTop) + "/mp_rank_00/" + name);
    return fuzz::archive_in(bytes, {0, bytes.size()});
  };
  fuzz::Archive flat = archive("distrib_optim.pt"), model = archive("model_optim_rng.pt");
  while (!input.is_at_end()) {
    const uint8_t what = input.byte();
    if (what % 8 == 0) {
      const std::string_view name = kArguments[input.byte() % std::size(kArguments)];
      model.set_number_behind(name, input.byte() % 4 == 0, input.lie(1));
    } else if (what % 8 == 1) {
      flat.splice(input);
    } else if (what % 8 == 2) {
      flat.resize_record(input);
    } else {
      flat.lie_in_a_number(input);
    }
  }
  files.put(std::string(kTop) + "/mp_rank_00/distrib_optim.pt", flat.encoded());
  files.put(std::string(kTop) + "/mp_rank_00/model_optim_rng.pt", model.encoded());
  return files;
}

// What is named is covered once, whatever the files said.
void require_covered(const ckpt::TensorEntry& tensor) {
  uint64_t elements = 0;
  for (const ckpt::Chunk& chunk : tensor.chunks) elements += ckpt::element_count(chunk.box.sizes);
  if (elements != ckpt::element_count(tensor.shape)) __builtin_trap();
}

void read_some(const optim::OpenedTraining& checkpoint, const optim::FiledState& state) {
  for (const optim::TensorRef& tensor : optim::tensors_of(state)) {
    require_covered(*tensor);
    fuzz::succeeds([&] {
      ckpt::TensorStream stream(*tensor, checkpoint);
      std::vector<std::byte> bytes(std::min(stream.left_bytes(), kReadBytesMax) / 8 * 8);
      stream.read(bytes);
    });
  }
  for (const optim::TrainedParam& param : state.params) {
    for (const optim::StateTensor& one : param.states) {
      if (one.value->shape != param.weight->shape) __builtin_trap();
    }
  }
}

void read_and_verify(test::MemoryFolder files) {
  const auto source = std::make_shared<const test::MemoryFolder>(std::move(files));
  std::optional<optim::OpenedTraining> checkpoint;
  ckpt::OpenOptions opening;
  opening.source = source;
  const bool is_open = fuzz::succeeds([&] { checkpoint = optim::open_checkpoint(kTop, opening); });
  if (!is_open) return;
  fuzz::succeeds([&] { read_some(*checkpoint, optim::read_training_state(*checkpoint)); });
  optim::VerifyOptions options;
  options.execution.threads = 1;
  fuzz::succeeds([&] { optim::verify(*checkpoint, options); });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const StoredSet buckets("do_adam_bf16_torch_dist_dp_reshardable_dp2");
  static const StoredSet fragments = flattened_set();
  constexpr size_t kSizeMax = 1 << 10;
  fuzz::Input input(data, std::min(size, kSizeMax));
  const uint8_t form = input.byte() % 4;
  if (form == 3) {
    read_and_verify(flat_files(input));
    return 0;
  }
  const StoredSet& set = form == 2 ? fragments : buckets;
  Liar liar(input);
  liar.tell(set);
  std::optional<test::MemoryFolder> files;
  if (fuzz::succeeds([&] { files = liar.folder(set); })) read_and_verify(std::move(*files));
  return 0;
}
