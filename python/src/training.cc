// The training state: each parameter once, with what the optimizer keeps of it; its groups; what
// one rank has of it.
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/read_record.h>
#include <ckpt/slice.h>
#include <ckpt/tensor_stream.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <training/groups.h>
#include <training/layer_wise_checkpoint.h>
#include <training/optimizer_facts.h>

#include "buffer.h"
#include "module.h"

namespace python {
namespace {

struct Training {
  Opened opened;
  std::shared_ptr<const optim::FiledState> state;
};

Training training_of(const Checkpoint& checkpoint) {
  const nb::gil_scoped_release released;
  return {checkpoint.opened, std::make_shared<const optim::FiledState>(
                                 optim::read_training_state(*checkpoint.opened))};
}

nb::object tensor_or_none(const Training& training, const optim::TensorRef& tensor) {
  return tensor == nullptr ? nb::none() : nb::cast(Tensor{training.opened, tensor});
}

// (name, weight, master or None, {state: tensor}, optimizer, group) of each, in the model's order.
nb::list params_of(const Training& training) {
  nb::list params;
  for (const optim::TrainedParam& param : training.state->params) {
    nb::dict states;
    for (const auto& [name, value] : param.states) {
      states[text(name)] = tensor_or_none(training, value);
    }
    params.append(nb::make_tuple(text(param.info.name), tensor_or_none(training, param.weight),
                                 tensor_or_none(training, param.master), states, param.optimizer,
                                 param.group));
  }
  return params;
}

// A dict of each group: what is stored of it, and where it stands.
nb::list groups_of(const Checkpoint& checkpoint) {
  const optim::GroupReport report = optim::find_groups(*checkpoint.opened);
  const optim::RunFacts run = optim::run_facts(*checkpoint.opened);
  nb::list groups;
  for (const optim::StoredGroup& group : report.groups) {
    nb::dict made;
    for (const auto& [name, value] : group.settings) made[text(name)] = to_python(value);
    made["rule"] = text(rule_of(group, run));
    made["optimizer"] = group.optimizer;
    made["group"] = group.group;
    made["file"] = text(group.file);
    groups.append(made);
  }
  return groups;
}

// A tensor of a rank that no single box of a stored one is, such as two blocks of it: read whole.
struct Record {
  Opened opened;
  std::shared_ptr<const ckpt::Target> target;
  const ckpt::TargetRecord* record;
  ckpt::TensorEntry entry;  // its chunk is the record
};

class BytesSource final : public ckpt::PayloadSource {
 public:
  explicit BytesSource(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override { return {region}; }
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    std::memcpy(out.data(), bytes_.data() + located.bytes.offset_bytes + offset_bytes, out.size());
  }
  std::string file_name(uint32_t) const override { return {}; }

 private:
  std::vector<std::byte> bytes_;
};

void read_record_into(const Record& record, const nb::tuple& dims, nb::handle buffer) {
  const ckpt::Slice slice = slice_of(dims);
  const Buffer out(buffer);
  check_slice(slice, record.entry, out.bytes().size());
  {
    const nb::gil_scoped_release released;
    std::vector<std::byte> bytes(record.record->count_bytes);
    ckpt::read_record(*record.record, *record.opened, bytes);
    const BytesSource source(std::move(bytes));
    const ckpt::SlicedTensor sliced(record.entry, slice, source);
    ckpt::TensorStream(sliced.entry(), sliced).read(out.bytes());
  }
}

// The files of one rank as Python's values. `tensor` is called with what reads a tensor, and with
// the offsets and sizes of the part of it that is meant.
class RankValues {
 public:
  RankValues(const Training& training, std::shared_ptr<const ckpt::Target> target,
             const nb::object& tensor)
      : training_(training), target_(std::move(target)), tensor_(tensor) {}

  nb::dict convert() const {
    nb::dict files;
    for (const ckpt::TargetFile& file : target_->files) {
      const ckpt::TargetArchive& archive = file.archives.at(0);
      const auto& tree = std::get<std::shared_ptr<const ckpt::ValueTree>>(archive.content);
      files[text(archive.name)] =
          to_python(tree->root(), [&](const ckpt::Value&, const ckpt::TensorView& view) {
            return make(archive.records.at(std::stoul(view.storage_key)), view);
          });
    }
    return files;
  }

 private:
  nb::object make(const ckpt::TargetRecord& record, const ckpt::TensorView& view) const {
    const bool is_row_major =
        view.offset == 0 && view.strides == ckpt::row_major_strides(view.shape);
    const auto* const part = std::get_if<ckpt::TensorSource>(&record.source);
    if (part != nullptr && is_row_major && part->box.sizes == view.shape) {
      return tensor_(Tensor{training_.opened, part->tensor}, tuple_of(part->box.offsets),
                     tuple_of(view.shape));
    }
    ckpt::TensorEntry entry{
        .file = {}, .key = {}, .dtype = view.dtype, .shape = view.shape, .chunks = {}};
    entry.chunks.push_back({ckpt::whole(view.shape), {.bytes = {0, record.count_bytes}}});
    entry.chunks[0].view =
        std::make_shared<const ckpt::StridedView>(ckpt::StridedView{view.offset, view.strides});
    return tensor_(Record{training_.opened, target_, &record, std::move(entry)},
                   tuple_of(ckpt::Extents(view.shape.size())), tuple_of(view.shape));
  }
  const Training& training_;
  std::shared_ptr<const ckpt::Target> target_;
  const nb::object& tensor_;
};

using Places = std::map<std::string, uint32_t>;

optim::GivenRank place_of(const Places& given) {
  const auto at = [&](const char* name) -> std::optional<uint32_t> {
    const auto found = given.find(name);
    return found == given.end() ? std::nullopt : std::optional(found->second);
  };
  return {at("tp"), at("cp"), at("dp"), at("pp"), at("ep"), at("etp")};
}

nb::dict rank_of(const Training& training, const Places& place, const nb::object& tensor) {
  optim::LayerWiseTargetSpec spec{.format = ckpt::Format::Torch, .as_root = false};
  spec.one_rank = place_of(place);
  std::shared_ptr<const ckpt::Target> target;
  {
    const nb::gil_scoped_release released;
    target = std::make_shared<const ckpt::Target>(make_layer_wise_target(*training.state, spec));
  }
  return RankValues(training, std::move(target), tensor).convert();
}

}  // namespace

void add_training(nb::module_& module, nb::class_<Checkpoint>& checkpoint) {
  checkpoint.def_prop_ro("training", training_of).def_prop_ro("groups", groups_of);
  nb::class_<Training>(module, "Training").def_prop_ro("params", params_of).def("rank", rank_of);
  nb::class_<Record>(module, "Record")
      .def_prop_ro("key", [](const Record&) { return nb::str(""); })
      .def_prop_ro("dtype", [](const Record& r) { return text(ckpt::name(r.entry.dtype)); })
      .def_prop_ro("itemsize", [](const Record& r) { return bytes_per_element(r.entry.dtype); })
      .def_prop_ro("shape", [](const Record& r) { return tuple_of(r.entry.shape); })
      .def_prop_ro("chunks", [](const Record&) { return nb::list(); })
      .def("read_into", read_record_into);
}

}  // namespace python
