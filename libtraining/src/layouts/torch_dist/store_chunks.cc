// Chunks of a torch_dist folder.
#include "layouts/torch_dist/store_chunks.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grid/glu_rows.h"
#include "grid/sharing_of_params.h"
#include "layouts/filings/flattened_ranges.h"
#include "layouts/parts/store_errors.h"
#include "layouts/parts/tensor_parts.h"
#include "state/remainders.h"

namespace optim {
namespace {

using ckpt::DistChunk;

constexpr uint32_t kNoTensor = ~uint32_t{0};

size_t most_tensor_ranks(const ParallelSizes& sizes) {
  return std::max(tensor_ranks(sizes, false), tensor_ranks(sizes, true));
}

class ChunkWriter {
 public:
  ChunkWriter(const TargetJob& job, const HoldingRanks& ranks, ckpt::DistSpec& spec)
      : job_(job),
        source_(job.source),
        placement_(*job.placement),
        rules_(key_rules(job.source)),
        writers_(ranks),
        spec_(spec),
        parts_max_(most_tensor_ranks(job.grid.sizes)),
        written_(parts_max_ * source_.params.size()) {
    names_.reserve(source_.params.size());
    segments_.reserve(source_.params.size());
    for (const TrainedParam& param : source_.params) {
      names_.push_back(sharded_name(param.info.name, rules_));
      segments_.push_back(segments_of(param));
    }
    for (const ModelEntry& entry : source_.model) {
      if (entry.what == ModelEntry::What::OtherName) other_names_[entry.param] = {entry.name};
    }
  }

  void run() {
    add_model_chunks();
    if (job_.filed.is_zero1() && !job_.filed.has_store_hooks()) add_named_states();
    add_optimizer_chunks();
    balance_shared_chunks();
  }

 private:
  // Of a parameter's key: the tensors under it, behind each prefix.
  using TensorsOfKey = std::vector<uint32_t>;

  // Of a tensor of a parameter: its weight, its master or a state of it.
  struct Stored {
    uint32_t prefix;  // of the key, in prefixes_
    uint32_t param;
    const ShardedName& name;
    TensorsOfKey& of_key;
    const TensorRef& tensor;
    bool in_ranges = false;  // its parts lie flattened (layouts/filings/flattened_ranges.h)
  };

  // The segments of a parameter's rows, which have keys of their own; null: it has none.
  const std::vector<RowSegment>* segments_of(const TrainedParam& param) const {
    const ModelRule* const rule = rules_.table->find_segmented(param.info.name);
    if (rule == nullptr) return nullptr;
    const std::vector<RowSegment>& segments = rule->segments;
    if (param.sharing.is_split() && param.sharing.split->sections.size() == segments.size()) {
      return &segments;
    }
    store_errors::unsupported(param.info.name,
                              "torch_dist keeps segments of its rows apart, and args do not say "
                              "how many rows each has",
                              row_for(source_, param.info.name));
  }

  bool has_shape_of_param(const Stored& stored) const {
    return stored.tensor->shape == source_.params[stored.param].weight->shape;
  }

  // What tensor parallel rank `tensor_rank` holds, as Megatron stores it: one chunk per layer and
  // expert, two for the halves of a gated linear unit.
  std::vector<ckpt::Box> blocks(const Stored& stored, uint32_t tensor_rank) const {
    const TensorSharing& sharing = source_.params[stored.param].sharing;
    if (!has_shape_of_param(stored)) return {ckpt::whole(stored.tensor->shape)};
    if (!sharing.is_known) return boxes_in_source(stored);
    return placement_.blocks(stored.param, tensor_rank);
  }

  // Where nobody knows how ranks would share it, they share it as before.
  static std::vector<ckpt::Box> boxes_in_source(const Stored& stored) {
    std::vector<ckpt::Box> boxes;
    for (const ckpt::Chunk& chunk : stored.tensor->chunks) boxes.push_back(chunk.box);
    return boxes;
  }

  // Of them those that the store has in other places.
  std::vector<ckpt::Box> places(const Stored& stored, uint32_t tensor_rank,
                                std::vector<ckpt::Box>& held) const {
    const TrainedParam& param = source_.params[stored.param];
    if (!has_shape_of_param(stored) || !param.sharing.is_split() ||
        !is_in_blocks(source_, param.info.name)) {
      return held;
    }
    const TensorRank rank{tensor_rank, placement_.tensor_ranks(stored.param)};
    StoredBoxes boxes = stored_boxes(placement_.shape_of(stored.param), rank);
    held = std::move(boxes.of_ranks);
    return std::move(boxes.in_store);
  }

  void add_chunks(const Stored& stored, uint32_t tensor_rank, uint32_t writer) {
    std::vector<ckpt::Box> held = blocks(stored, tensor_rank);
    if (held.empty()) return;
    std::vector<ckpt::Box> stored_at = places(stored, tensor_rank, held);
    const ShardedName& name = stored.name;
    const bool has_segments = segments_[stored.param] != nullptr && has_shape_of_param(stored);
    uint64_t segment_begin = 0;
    uint32_t index = has_segments ? kNoTensor : tensor_of(stored);
    for (size_t i = 0; i < held.size(); ++i) {
      if (has_segments) {
        const uint64_t rows = source_.params[stored.param].sharing.split->sections[i];
        index = tensor_of_segment(stored, i, rows);
        stored_at[i].offsets[0] -= segment_begin;
        segment_begin += rows;
      }
      for (auto& [box, tensor] : filled(held[i], stored.tensor)) {
        ckpt::Box whole = box;
        if (!box.offsets.empty()) box.offsets[0] += stored_at[i].offsets[0] - held[i].offsets[0];
        ckpt::RecordSource source = std::vector<ckpt::Segment>();  // zeros
        if (tensor) source = ckpt::TensorSource{std::move(tensor), std::move(whole)};
        prepend(box.offsets, name, name.layer.value_or(0), name.expert.value_or(0));
        prepend(box.sizes, name, 1, 1);
        if (stored.in_ranges) box = flattened(box, held[i].sizes, stored, index);
        spec_.chunks.push_back({index, writer, std::move(box), std::move(source)});
      }
    }
  }

  // Of a part of this size of it.
  ckpt::Box flattened(const ckpt::Box& box, ckpt::Extents part, const Stored& stored,
                      uint32_t tensor) {
    prepend(part, stored.name, 1, 1);
    flatten(part, spec_.tensors[tensor]);
    return flat_range(box, part);
  }

  // The stacked tensor that it is part of.
  uint32_t tensor_of(const Stored& stored) {
    const bool is_of_shape = has_shape_of_param(stored);
    return tensor_under(stored.name.key, stored.of_key, stored,
                        is_of_shape ? placement_.shape_of(stored.param) : stored.tensor->shape);
  }

  uint32_t tensor_of_segment(const Stored& stored, size_t segment, uint64_t rows) {
    const std::string key = stored.name.key + "." + (*segments_[stored.param])[segment].name;
    ckpt::Extents shape = stored.tensor->shape;
    shape[0] = rows;
    return tensor_under(key, tensors_[key], stored, std::move(shape));
  }

  uint32_t tensor_under(const std::string& key, TensorsOfKey& known, const Stored& stored,
                        ckpt::Extents shape) {
    if (known.size() <= stored.prefix) known.resize(stored.prefix + 1, kNoTensor);
    if (known[stored.prefix] != kNoTensor) return known[stored.prefix];
    prepend(shape, stored.name, layer_count(stored.name), rules_.expert_count);
    known[stored.prefix] = static_cast<uint32_t>(spec_.tensors.size());
    spec_.tensors.push_back(
        {prefixes_[stored.prefix] + key, stored.tensor->dtype, std::move(shape)});
    return known[stored.prefix];
  }

  uint32_t layer_count(const ShardedName& name) const {
    return name.layer ? stack_rules(name.key, rules_).layers : 0;
  }

  uint32_t index_of_prefix(std::string prefix) {
    const auto index = std::ranges::find(prefixes_, prefix) - prefixes_.begin();
    if (std::cmp_equal(index, prefixes_.size())) prefixes_.push_back(std::move(prefix));
    return static_cast<uint32_t>(index);
  }

  // What lies in front of a tensor's own dimensions.
  static void prepend(ckpt::Extents& extents, const ShardedName& name, uint32_t layer,
                      uint32_t expert) {
    if (name.expert) extents.insert(extents.begin(), expert);
    if (name.layer) extents.insert(extents.begin(), layer);
  }

  // A block, cut where the source's rows end: what is behind them is padding, zeros.
  using Filled = std::vector<std::pair<ckpt::Box, TensorRef>>;
  static Filled filled(const ckpt::Box& block, const TensorRef& tensor) {
    const uint64_t begin = block.offsets.empty() ? 0 : block.offsets[0];
    const uint64_t stored = tensor->shape.empty() ? 1 : tensor->shape[0];
    const uint64_t end = block.offsets.empty() ? 1 : begin + block.sizes[0];
    if (end <= stored) return {{block, tensor}};
    Filled parts;
    ckpt::Box rows = block;
    if (begin < stored) {
      rows.sizes[0] = stored - begin;
      parts.emplace_back(rows, tensor);
    }
    rows.offsets[0] = std::max(begin, stored);
    rows.sizes[0] = end - rows.offsets[0];
    parts.emplace_back(rows, nullptr);
    return parts;
  }

  // Each chunk may be written by any of the ranks that hold it: by the first, until
  // balance_shared_chunks().
  void add_model_chunks() {
    for_each_part([this](uint32_t param, uint32_t part, uint32_t holder) {
      add_chunks(
          {0, param, names_[param], tensors_[names_[param].key], source_.params[param].weight},
          part, holder);
      const auto other = other_names_.find(param);
      if (other == other_names_.end()) return;
      add_chunks(
          {0, param, other->second, tensors_[other->second.key], source_.params[param].weight},
          part, holder);
    });
  }

  // Of a DistributedOptimizer, whose ranks own ranges of elements, but file whole parameters.
  void add_named_states() {
    for_each_part([this](uint32_t param, uint32_t part, uint32_t holder) {
      add_param_states(param, part, holder);
    });
  }

  template <class Add>
  void for_each_part(const Add& add) {
    for (uint32_t entry = 0; entry < source_.model.size(); ++entry) {
      if (source_.model[entry].what != ModelEntry::What::Param) continue;
      const uint32_t param = source_.model[entry].param;
      const uint32_t stage = placement_.stage_of_entry(entry);
      for (uint32_t part = 0; part < placement_.tensor_ranks(param); ++part) {
        const auto& holders = placement_.is_expert(param)
                                  ? writers_.of_expert(part, placement_.expert_rank(param), stage)
                                  : writers_.of_dense(part, stage);
        add(param, part, holders[0]);
        holders_.resize(spec_.chunks.size(), &holders);
      }
    }
  }

  // Of what each rank owns, the copies of other tensor parallel ranks, of tied embeddings and of
  // ranks that share without dealing are left out.
  void add_optimizer_chunks() {
    if (job_.filed.is_zero1()) return;
    for (const WorldRank& rank : job_.ranks) {
      for (const auto& group : job_.deals->owned(rank.at)) {
        for (const HeldEntry& held : group) add_owned(held, rank);
      }
    }
  }

  void add_owned(const HeldEntry& held, const WorldRank& rank) {
    const uint32_t param = source_.model[held.entry].param;
    if (job_.filed.optimizers[source_.params[param].optimizer]->in_store != nullptr) return;
    if (!placement_.is_first_copy(held, rank.at.pp)) return;
    const uint32_t tensor_rank = rank.at.tensor_rank(placement_.is_expert(param));
    if (placement_.tensor_ranks(param) == 1 && tensor_rank != 0) return;
    const uint32_t part = placement_.tensor_rank(param, rank.at);
    // Experts of one expert parallel rank are dealt as dense parameters are, over ranks of which
    // several may hold the same part.
    auto is_written = written_[param * parts_max_ + part];
    if (is_written) return;
    is_written = true;
    add_param_states(param, part, rank.rank);
  }

  void add_param_states(uint32_t index, uint32_t tensor_rank, uint32_t writer) {
    const TrainedParam& param = source_.params[index];
    const auto other = other_names_.find(index);
    const ShardedName& name = other == other_names_.end() ? names_[index] : other->second;
    TensorsOfKey& of_key = tensors_[name.key];
    const std::string chain_prefix = prefix_of(param.optimizer);
    const Filing& filing = *job_.filed.optimizers[param.optimizer];
    const bool in_ranges = &filing == &kRanges;
    const auto add = [&](std::string_view state, const TensorRef& value) {
      const uint32_t prefix = index_of_prefix(chain_prefix + state_key(state, ""));
      add_chunks({prefix, index, name, of_key, value, in_ranges}, tensor_rank, writer);
    };
    for (const auto& [state, value] : param.states) {
      if (state != kRemainderState) add(state, value);
    }
    const TensorRef& filed = filing.by_elements ? filed_as_master(param) : param.master;
    if (!filed) return;
    add(filing.by_elements && !in_ranges ? kDistributedMaster : kMasterState, filed);
  }

  // Beside flat buckets and the like, whose keys may name no parameter, all optimizers are
  // numbered, as up to core 0.14.
  std::string prefix_of(uint32_t optimizer) const {
    const bool are_numbered = job_.filed.has_store_hooks() || job_.filed.has(kRanges);
    if (!are_numbered || source_.chain.size() == 1) return {};
    return "chained_" + std::to_string(optimizer) + ".";
  }

  uint64_t chunk_bytes(const DistChunk& chunk) const {
    const ckpt::DType dtype = spec_.tensors[chunk.tensor].dtype;
    return ckpt::element_count(chunk.box.sizes) * ckpt::bytes_per_element(dtype);
  }

  // The largest chunks first, each to the one of its holders that has least.
  void balance_shared_chunks() {
    std::vector<uint64_t> loads(job_.ranks.size()), bytes(holders_.size());
    for (size_t i = holders_.size(); i < spec_.chunks.size(); ++i) {
      loads[spec_.chunks[i].rank] += chunk_bytes(spec_.chunks[i]);
    }
    for (size_t i = 0; i < holders_.size(); ++i) bytes[i] = chunk_bytes(spec_.chunks[i]);
    std::vector<size_t> order(holders_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return bytes[i]; });
    for (const size_t i : order) {
      const uint32_t least =
          *std::ranges::min_element(*holders_[i], {}, [&](uint32_t rank) { return loads[rank]; });
      spec_.chunks[i].rank = least;
      loads[least] += bytes[i];
    }
  }

  const TargetJob& job_;
  const TrainingState& source_;
  const Placement& placement_;
  KeyRules rules_;
  const HoldingRanks& writers_;
  ckpt::DistSpec& spec_;
  std::vector<ShardedName> names_;               // [parameter]
  std::map<uint32_t, ShardedName> other_names_;  // by parameter: its state is under this one
  std::vector<const std::vector<RowSegment>*> segments_;   // [parameter]; null: none
  std::vector<std::string> prefixes_ = {""};               // of keys; the first is the model's
  std::unordered_map<std::string, TensorsOfKey> tensors_;  // of spec_, by key without prefix
  std::vector<const std::vector<uint32_t>*> holders_;      // [chunk that several ranks hold]
  size_t parts_max_;
  std::vector<bool> written_;  // [parameter, part] of optimizer state
};

}  // namespace

void add_store_chunks(const TargetJob& job, const HoldingRanks& ranks, ckpt::DistSpec& spec) {
  ChunkWriter(job, ranks, spec).run();
}

StoredBoxes stored_boxes(const ckpt::Extents& shape, TensorRank rank) {
  StoredBoxes boxes;
  boxes.in_store = blocks_of(shape, two_halves(0, shape[0]), rank);
  boxes.of_ranks = boxes.in_store;
  uint64_t begin = shape[0] / rank.count * rank.index;
  for (ckpt::Box& box : boxes.of_ranks) {
    box.offsets[0] = begin;
    begin += box.sizes[0];
  }
  return boxes;
}

TensorRef rows_of_ranks(const TensorRef& stored, uint32_t ranks) {
  const uint64_t rows = stored->shape.empty() ? 0 : stored->shape[0];
  if (ranks == 1 || rows % (uint64_t{2} * ranks) != 0) return stored;
  ckpt::TensorEntry ordered = *stored;
  ordered.chunks = std::vector<ckpt::Chunk>();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const auto [of_ranks, in_store] = stored_boxes(stored->shape, {rank, ranks});
    for (size_t half = 0; half < in_store.size(); ++half) {
      for (const ckpt::Chunk& chunk : stored->chunks) {
        const auto box = ckpt::intersect(chunk.box, in_store[half]);
        if (!box) continue;
        ordered.chunks.push_back(part_of(chunk, *box, stored->dtype));
        uint64_t& row = ordered.chunks.back().box.offsets[0];
        row = row - in_store[half].offsets[0] + of_ranks[half].offsets[0];
      }
    }
  }
  return std::make_shared<const ckpt::TensorEntry>(std::move(ordered));
}

void order_rows(uint32_t ranks, TrainedParam& param) {
  const ckpt::Extents shape = param.weight->shape;
  param.weight = rows_of_ranks(param.weight, ranks);
  if (param.master) param.master = rows_of_ranks(param.master, ranks);
  for (StateTensor& state : param.states) {
    if (state.value->shape == shape) state.value = rows_of_ranks(state.value, ranks);
  }
}

}  // namespace optim
