// Megatron's own layout of the buffers must give the sizes that the files state.
#include "layouts/torch/flat_files.h"

#include <ckpt/error.h>

#include "layouts/parts/rank_groups.h"
#include "layouts/torch/placed_value.h"
#include "state/group_compare.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

constexpr std::string_view kCoalesced = "buckets_coalesced", kUnpadded = "numel_unpadded";

constexpr const char* kLayoutHint =
    "args (overlap_grad_reduce, ddp_bucket_size, ddp_num_buckets, sizes) may not be those of the "
    "run that wrote the file, or some of its parameters are frozen";

// A chain of optimizers is a list, of which this is one; an optimizer alone stands without a list.
Value state_in_chain(const Value& root, const Place& place, size_t index, size_t count) {
  if (count == 1) {
    if (!root.is(Kind::Dict)) place.corrupt("is not the state of one DistributedOptimizer");
    return root;
  }
  if (!root.is(Kind::List) || root.size() != count) {
    place.corrupt("is not a list of the states of " + std::to_string(count) +
                  " DistributedOptimizers");
  }
  return root[index];
}

}  // namespace

bool FlatFiles::writes(const WorldRank& rank, uint32_t optimizer) const {
  return buffers_.has_experts(optimizer) ? rank.at.edp == 0 : rank.at.dp_cp == 0;
}

// Ranks that write to one file overwrite what the others wrote.
void FlatFiles::require_writers() const {
  std::map<std::string, uint32_t> writers;
  for (const WorldRank& rank : source_.ranks) {
    for (uint32_t i = 0; i < into_.view.chain.size(); ++i) {
      if (!writes(rank, i)) continue;
      const auto [known, is_first] = writers.emplace(rank.flat_file(), rank.rank);
      if (is_first || known->second == rank.rank) continue;
      Place{rank.flat_file(), ""}.corrupt("ranks " + std::to_string(known->second) + " and " +
                                          std::to_string(rank.rank) +
                                          " both write it, so that state was lost");
    }
  }
  for (const ckpt::FileEntry& file : source_.checkpoint.catalog().files) {
    if (!file.path.ends_with(kFlatFileName) || writers.contains(file.path)) continue;
    Place{file.path, ""}.corrupt("unexpected rank file: no rank of this layout writes it",
                                 "it may be left over from a run of another layout");
  }
}

void FlatFiles::read(const std::vector<ParamGroup>& groups) {
  require_writers();
  const size_t count = into_.view.chain.size();
  for (const WorldRank& rank : source_.ranks) {
    for (uint32_t i = 0; i < count; ++i) {
      if (!writes(rank, i)) continue;
      const Place root{rank.flat_file(), ""};
      const Value value = state_in_chain(source_.document(root.file).tree.root(), root, i, count);
      read_optimizer({rank, i, value, count == 1 ? root : root / i});
    }
  }
  states_.join();
  require_same_states(into_.view);
  for (ChainedOptimizerState& optimizer : into_.view.chain) optimizer.is_distributed = true;
  read_groups(groups);
}

void FlatFiles::read_optimizer(const Stored& stored) {
  const auto coalesced = stored.value.is(Kind::Dict) ? stored.value.find(kCoalesced) : std::nullopt;
  if (!coalesced) stored.place.corrupt("is not the state of a DistributedOptimizer");
  if (!coalesced->is(Kind::Bool) || !coalesced->as_bool()) {
    (stored.place / kCoalesced)
        .unsupported("is not True: buckets in tensors of their own are not supported");
  }
  const std::vector<FlatBuffer> buffers = buffers_.of(stored.optimizer, stored.rank.at);
  if (stored.value.item_count() != buffers.size() + 1) {
    stored.place.corrupt("holds " + std::to_string(stored.value.item_count() - 1) +
                             " buffers, expected " + std::to_string(buffers.size()) +
                             ", one for each model chunk with such parameters",
                         kMixedFilesHint);
  }
  for (size_t i = 0; i < buffers.size(); ++i) read_buffer(stored, i, buffers[i]);
}

void FlatFiles::read_buffer(const Stored& stored, size_t number, const FlatBuffer& buffer) {
  const Place place = stored.place / number;
  const auto value = stored.value.find(static_cast<int64_t>(number));
  if (!value || !value->is(Kind::Dict)) place.corrupt("this buffer is missing");
  if (value->item_count() != 1) {
    place.unsupported("holds buffers of " + std::to_string(value->item_count()) +
                      " types of parameters, expected one");
  }
  const auto [type, state] = value->item(0);
  const TrainedParam& first = into_.view.params[into_.view.model[buffer.held.front().entry].param];
  const std::string expected = "(torch." + std::string(ckpt::name(first.info.dtype)) + ", ";
  if (!ckpt::key_text(type).starts_with(expected)) {
    (place / ckpt::key_text(type))
        .corrupt("is not of the type of the model's weights, " +
                 std::string(ckpt::name(first.info.dtype)));
  }
  const FlatTensors& tensors = tensors_at(state, place / ckpt::key_text(type), buffer.layout);
  for (size_t i = 0; i < buffer.held.size(); ++i) {
    states_.add(into_.view.model[buffer.held[i].entry].param,
                {stored.rank.at, tensors, buffer.layout.compact_begin(i)});
  }
}

const FlatTensors& FlatFiles::tensors_at(const Value& value, const Place& place,
                                         const FlatLayout& layout) {
  const uint64_t expected = layout.unpadded_count();
  const Value stated = member(value, kUnpadded, place);
  if (!stated.is(Kind::Int) || stated.as_int() < 0 ||
      static_cast<uint64_t>(stated.as_int()) != expected) {
    (place / kUnpadded)
        .corrupt("is " + ckpt::key_text(stated) + ", expected " + std::to_string(expected) +
                     " by the model's parameters in the order of the buffer",
                 kLayoutHint);
  }
  FlatTensors& tensors = tensors_.emplace_back();
  for (size_t i = 0; i < value.item_count(); ++i) {
    const Value key = value.item(i).first;
    if (!key.is(Kind::Str)) place.corrupt("the name of a state is not a string");
    if (key.text() == kUnpadded) continue;
    const Place own = place / key.text();
    const ckpt::TensorEntry& tensor = source_.tensor_at(own);
    if (tensor.shape != ckpt::Extents{expected}) {
      own.corrupt("does not have the " + std::to_string(expected) + " elements of its buffer",
                  kMixedFilesHint);
    }
    tensors.emplace(key.text(), FlatTensor(tensor));
  }
  if (tensors.empty()) place.corrupt("holds no state");
  return tensors;
}

// Every rank states those of all optimizers.
void FlatFiles::read_groups(const std::vector<ParamGroup>& groups) {
  RankGroups merged(into_.common, into_.view);
  RankItems items(equal_items_of(source_.checkpoint));
  for (const WorldRank& rank : source_.ranks) {
    if (!rank.writes_model) continue;
    const ckpt::Document& document = source_.document(rank.model_file());
    const Place root{rank.model_file(), ""};
    const RankOptimizers stated =
        optimizers_of(member(document.tree.root(), "optimizer", root), root / "optimizer");
    if (stated.states.size() != into_.view.chain.size()) {
      (root / "optimizer")
          .corrupt("holds " + std::to_string(stated.states.size()) + " optimizers, expected " +
                   std::to_string(into_.view.chain.size()));
    }
    for (uint32_t i = 0; i < stated.states.size(); ++i) {
      const Place& place = stated.places[i];
      const Value inner = member(stated.states[i], "optimizer", place);
      require_state_in_buffers(inner, place / "optimizer");
      const Value values = list_member(inner, "param_groups", place / "optimizer");
      merged.add_list(
          i, groups,
          {values, document, place / "optimizer" / "param_groups", rank_name(place.file)});
      items.add({rank.rank, i, false, document, stated.states[i], place}, {"optimizer"});
      items.add({rank.rank, i, true, document, inner, place / "optimizer"},
                {"state", "param_groups"});
    }
  }
  items.settle(into_.common, into_.view);
}

}  // namespace optim
