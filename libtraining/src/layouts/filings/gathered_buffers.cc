// Megatron's own layout of the buffers must give the sizes that are stated.
#include "layouts/filings/gathered_buffers.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

constexpr std::string_view kCoalesced = "buckets_coalesced", kUnpadded = "numel_unpadded";

constexpr const char* kGatheredHint =
    "args (overlap_grad_reduce, ddp_bucket_size, ddp_num_buckets, sizes) may not be those of the "
    "run that wrote the file, or some of its parameters are frozen";

}  // namespace

void GatheredBuffers::read(const Stored& stored, const std::vector<FlatBuffer>& buffers) {
  const auto coalesced = stored.value.is(Kind::Dict) ? stored.value.find(kCoalesced) : std::nullopt;
  if (!coalesced) stored.place.corrupt("is not the state of a DistributedOptimizer");
  if (!coalesced->is(Kind::Bool) || !coalesced->as_bool()) {
    (stored.place / kCoalesced)
        .unsupported("is not True: buckets in tensors of their own are not supported");
  }
  if (stored.value.item_count() != buffers.size() + 1) {
    stored.place.corrupt("holds " + std::to_string(stored.value.item_count() - 1) +
                             " buffers, expected " + std::to_string(buffers.size()) +
                             ", one for each model chunk with such parameters",
                         kMixedFilesHint);
  }
  for (size_t i = 0; i < buffers.size(); ++i) read_buffer(stored, i, buffers[i]);
}

void GatheredBuffers::read_buffer(const Stored& stored, size_t number, const FlatBuffer& buffer) {
  const Place place = stored.place / number;
  const auto value = stored.value.find(static_cast<int64_t>(number));
  if (!value || !value->is(Kind::Dict)) place.corrupt("this buffer is missing");
  if (value->item_count() != 1) {
    place.unsupported("holds buffers of " + std::to_string(value->item_count()) +
                      " types of parameters, expected one");
  }
  const auto [type, state] = value->item(0);
  const TrainedParam& first = view_.params[view_.model[buffer.held.front().entry].param];
  const std::string expected = "(torch." + std::string(ckpt::name(first.info.dtype)) + ", ";
  if (!ckpt::key_text(type).starts_with(expected)) {
    (place / ckpt::key_text(type))
        .corrupt("is not of the type of the model's weights, " +
                 std::string(ckpt::name(first.info.dtype)));
  }
  const FlatTensors& tensors =
      tensors_at(stored, place / ckpt::key_text(type), state, buffer.layout);
  for (size_t i = 0; i < buffer.held.size(); ++i) {
    states_.add(view_.model[buffer.held[i].entry].param,
                {stored.rank, tensors, buffer.layout.compact_begin(i)});
  }
}

const FlatTensors& GatheredBuffers::tensors_at(const Stored& stored, const Place& place,
                                               const Value& value, const FlatLayout& layout) {
  const uint64_t expected = layout.unpadded_count();
  const Value stated = member(value, kUnpadded, place);
  if (!stated.is(Kind::Int) || stated.as_int() < 0 ||
      static_cast<uint64_t>(stated.as_int()) != expected) {
    (place / kUnpadded)
        .corrupt("is " + ckpt::key_text(stated) + ", expected " + std::to_string(expected) +
                     " by the model's parameters in the order of the buffer",
                 kGatheredHint);
  }
  FlatTensors& tensors = tensors_.emplace_back();
  for (size_t i = 0; i < value.item_count(); ++i) {
    const Value key = value.item(i).first;
    if (!key.is(Kind::Str)) place.corrupt("the name of a state is not a string");
    if (key.text() == kUnpadded) continue;
    const Place own = place / key.text();
    const ckpt::TensorEntry& tensor = stored.tensor_at(own);
    if (tensor.shape != ckpt::Extents{expected}) {
      own.corrupt("does not have the " + std::to_string(expected) + " elements of its buffer",
                  kMixedFilesHint);
    }
    tensors.emplace(key.text(), FlatTensor(tensor));
  }
  if (tensors.empty()) place.corrupt("holds no state");
  return tensors;
}

}  // namespace optim
