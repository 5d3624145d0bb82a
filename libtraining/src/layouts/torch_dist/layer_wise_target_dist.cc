// Writes what layer_wise_dist.cc reads: each owner's optimizer chunks and a share of the model's in
// __R_0.distcp, the common state in common.pt or, as since core 0.19, in the store. Since then a
// DistributedOptimizer owns what Muon does not, which calls a master `param` and keeps its step in
// the groups.
#include <algorithm>
#include <optional>

#include <ckpt/torch_dist_target.h>
#include <training/opened_training.h>

#include "args/common_state.h"
#include "args/nemo_args.h"
#include "args/run_args.h"
#include "layouts/job/filing_hooks.h"
#include "layouts/job/layer_wise_target.h"
#include "layouts/job/store_files.h"
#include "layouts/job/tensor_attributes.h"
#include "layouts/parts/stacked_layers.h"
#include "layouts/torch_dist/store_chunks.h"
#include "model/tensor_names.h"
#include "state/state_values.h"
#include "state/words.h"

namespace optim {
namespace {

using ckpt::ArchiveBuilder;

ckpt::DistPlace place_of(const OpenedTraining& source, const ckpt::StorageRegion& region) {
  const std::string& path = source.catalog().files[region.file].path;
  if (region.wrapping == ckpt::Wrapping::ZstdTorchSave) {
    throw Error(ErrorCode::Unsupported, {.file = path, .key = {}},
                "holds compressed entries, which cannot be linked",
                "leave out --link, so that files are copied");
  }
  return {path, region.bytes};
}

// Every tensor and object of a torch_dist folder, where they lie in its files: Megatron finds them
// by key, whatever the grid. Random states of the old grid have keys of their own (its sizes).
// Throws Unsupported for compressed entries.
void add_linked_entries(const OpenedTraining& source, ckpt::DistSpec& spec) {
  for (const ckpt::ObjectEntry& object : source.catalog().objects) {
    if (!object.file.empty() || !object.region) continue;
    ckpt::DistObject entry{.key = object.key, .tree = nullptr, .records = {}};
    entry.place = place_of(source, *object.region);
    spec.objects.push_back(std::move(entry));
  }
  for (const TensorEntry& tensor : source.catalog().tensors) {
    if (!tensor.file.empty()) continue;  // of common.pt
    const auto index = static_cast<uint32_t>(spec.tensors.size());
    spec.tensors.push_back({tensor.key, tensor.dtype, tensor.shape, tensor.requires_grad});
    for (const Chunk& chunk : tensor.chunks) {
      spec.chunks.push_back({index,
                             0,
                             chunk.box,
                             {},
                             std::make_shared<ckpt::DistPlace>(place_of(source, chunk.region))});
    }
  }
}

// No other target is asked for in that filing.
bool is_nemo(const TargetJob& job) { return job.spec.form.filing == &kRanges; }

// A rank of which the folder has no file, so that a file of its own is new.
uint32_t unused_rank(const OpenedTraining& source) {
  uint32_t rank = 0;
  for (const ckpt::FileEntry& file : source.catalog().files) {
    const auto writer = writer_of(file.path);
    if (writer && file.path.ends_with(".distcp")) rank = std::max(rank, *writer + 1);
  }
  return rank;
}

constexpr const char* kBackendJson =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
    R"("common_backend": "torch", "common_backend_version": 1})";
constexpr const char* kBackendJsonOfAugust =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";

class DistWriter {
 public:
  explicit DistWriter(TargetJob& job)
      : job_(job),
        source_(job.source),
        placement_(*job.placement),
        rules_(key_rules(job.source)),
        writers_(job.ranks) {
    spec_.rank_count = static_cast<uint32_t>(job.ranks.size());
  }

  void run() {
    if (const OpenedTraining* const linked = job_.spec.linked) {
      add_linked_entries(*linked, spec_);
      rng_writer_ = unused_rank(*linked);
      spec_.rank_count = *rng_writer_ + 1;
    } else {
      add_extra_states();
      add_store_chunks(job_, writers_, spec_);
      if (is_nemo(job_)) {
        require_experts_on_stages();
        for (ckpt::DistObject& object : spec_.objects) object.key = nemo_key(object.key);
        for (ckpt::DistTensor& tensor : spec_.tensors) tensor.key = nemo_key(tensor.key);
      }
      add_rank_objects();
      for (const Filing* const filing : filings()) {
        const bool is_there = job_.filed.has(*filing) && filing->in_store != nullptr;
        if (is_there) filing->in_store->write(files(), *filing);
      }
    }
    add_rng_states();
    std::optional<ckpt::TargetFile> common = write_common_state();
    job_.deals.reset();  // files take as much
    job_.groups = {};
    auto& files = job_.target.files;
    files = ckpt::make_torch_dist_files(std::move(spec_));
    if (common) files.insert(files.end() - 1, std::move(*common));
    files.push_back({"metadata.json",
                     {},
                     job_.filed.release->has_common_file ? kBackendJson : kBackendJsonOfAugust});
  }

 private:
  StoreFiles files() { return {job_, writers_, spec_}; }

  // Core 0.13 numbers the optimizers that a stage has, in keys and in the common state of the
  // first.
  void require_experts_on_stages() const {
    const uint32_t stages = source_.chain.size() > 1 ? job_.grid.sizes.pipeline_parallel : 0;
    for (uint32_t stage = 0; stage < stages; ++stage) {
      const std::vector<HeldEntry> held = placement_.held(stage, 0);
      const auto is_expert = [&](const HeldEntry& one) {
        const ModelEntry& entry = source_.model[one.entry];
        return entry.what == ModelEntry::What::Param && placement_.is_expert(entry.param);
      };
      if (std::ranges::any_of(held, is_expert)) continue;
      throw Error(ErrorCode::Unsupported, {},
                  "pipeline stage " + std::to_string(stage) +
                      " has no experts, and NeMo loads no optimizer of experts unless each stage "
                      "has one",
                  "--ep 1 has one for all; --optimizer-sharding fully_reshardable writes a folder "
                  "of Megatron-LM");
    }
  }

  // --- objects ---

  static std::shared_ptr<const ValueTree> make_list_of_none() {
    ValueTree tree;
    tree.set_root(tree.list({tree.none()}));
    return std::make_shared<const ValueTree>(std::move(tree));
  }

  void add_extra_states() {
    for (uint32_t i = 0; i < source_.model.size(); ++i) {
      const ModelEntry& entry = source_.model[i];
      if (entry.what != ModelEntry::What::ExtraState) continue;
      if (is_left_out(entry.name)) {
        if (entry.object && holds_bytes(*source_.extra_states[*entry.object])) {
          job_.lose(entry.name, "Megatron does not save this object in torch_dist");
        }
        continue;
      }
      const ShardedName sharded = sharded_name(entry.name, rules_);
      const bool is_of_all_experts = !sharded.expert && stacked_axes(sharded.key, rules_).expert;
      const uint32_t experts = is_of_all_experts ? rules_.expert_count : 1;
      if (is_of_all_experts && entry.object && holds_bytes(*source_.extra_states[*entry.object])) {
        job_.lose(entry.name, "it is of all experts of a rank; torch_dist keeps one of each");
      }
      for (uint32_t expert = 0; expert < experts; ++expert) {
        ShardedName own = sharded;
        if (is_of_all_experts) own.expert = expert;
        add_extra_state(entry, own, placement_.stage_of_entry(i));
      }
    }
  }

  // An attention's object is stored beside its own parameter alone (--softmax-type learnable), the
  // output layer's of all but GPT models: hybrid ones, BERT and T5.
  bool is_left_out(const std::string& name) const {
    const auto found = rules_.table->find(name);
    if (!found || !found->rule->unsharded) return false;
    const bool is_output = without_submodel(name) == kOutputExtraState;
    if (is_output && !source_.facts.divided_stack.ends_with(kLayersPrefix)) return false;
    const std::string beside =
        is_output ? std::string(kNormOfHybrids)
                  : name.substr(0, name.size() - kExtraState.size()) + "softmax_offset";
    return std::ranges::none_of(
        source_.params, [&](const TrainedParam& param) { return param.info.name == beside; });
  }

  // Null: None is stored.
  const Document* extra_state_of(const ModelEntry& entry, const ShardedName& sharded) const {
    const auto of_experts = source_.expert_states.find(entry.name);
    if (of_experts != source_.expert_states.end()) {
      return of_experts->second[sharded.expert.value_or(0)].get();
    }
    if (!entry.object) return nullptr;
    const Document& document = *source_.extra_states[*entry.object];
    const bool is_cut = is_state_of_experts(entry.name) && holds_bytes(document);
    return is_cut ? nullptr : &document;
  }

  void add_extra_state(const ModelEntry& entry, const ShardedName& sharded, uint32_t stage) {
    const uint32_t writer = writers_.of_dense(0, stage)[0];
    const Document* const document = extra_state_of(entry, sharded);
    if (document == nullptr) {
      spec_.objects.push_back({extra_state_key(sharded), list_of_none_, {}, writer});
      return;
    }
    ArchiveBuilder archive;
    const NodeId object = archive.carry(document->tree.root(), *document);
    files().add_object(extra_state_key(sharded), archive, object, writer);
  }

  // At the size that they are of, they are carried as they are; else with rerun_state_machine lost.
  void add_rank_objects() {
    if (job_.size_changes() || job_.format_changes()) return;
    for (const auto& [key, document] : source_.rank_objects) {
      ArchiveBuilder archive;
      files().add_archive(key, archive, archive.carry(document->tree.root(), *document), 0);
    }
  }

  std::string extra_state_key(const ShardedName& sharded) const {
    if (parse_object_key(sharded.key)) return sharded.key;  // of layers without rules
    ObjectShard shard{sharded.key, {}, {}};
    const auto add = [&](uint32_t index, uint32_t count) {
      shard.indices.push_back(index);
      shard.counts.push_back(count);
    };
    if (sharded.layer) add(*sharded.layer, stack_rules(sharded.key, rules_).layers);
    if (sharded.expert) add(*sharded.expert, rules_.expert_count);
    if (shard.indices.empty()) add(0, 1);
    return object_key(shard);
  }

  // One for each pipeline stage and tensor parallel rank.
  void add_rng_states() {
    if (has_linked_rng(job_)) return;
    const ParallelSizes& sizes = job_.grid.sizes;
    for (uint32_t pp = 0; pp < sizes.pipeline_parallel; ++pp) {
      for (uint32_t tp = 0; tp < sizes.tensor_parallel; ++tp) {
        const uint32_t writer = writers_.of_dense(tp, pp)[0];
        ArchiveBuilder archive;
        const NodeId state = rng_state_of(job_, job_.ranks[writer].at, archive);
        if (state == ckpt::kNoNode) continue;
        const ObjectShard shard{
            "rng_state", {pp, tp}, {sizes.pipeline_parallel, sizes.tensor_parallel}};
        files().add_object(object_key(shard), archive, state, rng_writer_.value_or(writer));
      }
    }
  }

  // --- the common state ---

  // common.pt, or an object of the store.
  std::optional<ckpt::TargetFile> write_common_state() {
    ArchiveBuilder archive;
    ValueTree& tree = archive.tree();
    const NodeId root = tree.dict();
    bool written = false;
    const auto add_optimizer = [&] {  // Megatron's order: behind the iteration
      if (std::exchange(written, true) || source_.chain.empty()) return;
      tree.put(root, "optimizer", write_optimizers(archive));
    };
    const Value common = source_.common.tree.root();
    for (const auto& [key, value] : ckpt::items_of(common)) {
      if (key.text() == "rng_state") continue;
      if (const auto carried = carry_common_item(job_, key.text(), value, archive)) {
        tree.put(root, key.text(), *carried);
      }
      if (key.text() == "iteration") add_optimizer();
    }
    add_optimizer();
    if (is_nemo(job_)) {
      make_common_of_nemo(tree, root);
    } else {
      tree.put(root, "content_metadata", content_metadata(tree));
    }
    if (job_.filed.release->has_common_file)
      return ckpt::TargetFile{"common.pt", {archive.finish("common", root)}, {}};
    files().add_object(std::string(kCommonStateKey), archive, root, 0);
    return std::nullopt;
  }

  NodeId content_metadata(ValueTree& tree) const {
    const NodeId content = tree.dict();
    const bool is_unsharded = job_.filed.only() == &kWhole;
    const bool has_half = job_.filed.release->distributes_adam && !is_unsharded;
    if (job_.filed.is_zero1() || has_half) {
      const Filing* const stated = job_.filed.first_by_elements();
      const Filing& filing = stated == nullptr ? kByName : *stated;
      tree.put(content, "distrib_optim_sharding_type", tree.str(filing.name));
      if (&filing == &kByName) {
        tree.put(
            content, "distrib_optim_fully_reshardable_mem_efficient",
            tree.boolean(is_true(source_.args(), "distrib_optim_fully_reshardable_mem_efficient")));
      }
    }
    tree.put(content, "singleton_local_shards", tree.boolean(source_.facts.singleton_local_shards));
    tree.put(content, "chained_optim_avoid_prefix", tree.boolean(true));
    return content;
  }

  // {0: {...}, 1: {...}}, or the state itself if there is one optimizer.
  NodeId write_optimizers(ArchiveBuilder& archive) {
    if (source_.chain.size() == 1) return write_optimizer(archive, 0);
    const NodeId chain = archive.tree().dict();
    for (uint32_t i = 0; i < source_.chain.size(); ++i) {
      archive.tree().set_item(chain, archive.tree().integer(i), write_optimizer(archive, i));
    }
    return chain;
  }

  NodeId write_optimizer(ArchiveBuilder& archive, uint32_t index) {
    const ChainedOptimizerState& optimizer = source_.chain[index];
    const Filing& filing = *job_.filed.optimizers[index];
    ValueTree& tree = archive.tree();
    const auto carry = [&](NodeId node) {
      return archive.carry(source_.common.tree.value(node), source_.common);
    };
    const NodeId result = tree.dict();
    if (filing.in_store == nullptr) {
      tree.put(result, "optimizer", write_wrapped(job_, index, archive));
      for (const auto& [key, node] : optimizer.others) tree.put(result, key, carry(node));
    }
    if (filing.by_elements) {
      tree.put(result, "param_state_sharding_type", tree.str(filing.name));
    }
    return result;
  }

  TargetJob& job_;
  const FiledState& source_;
  const Placement& placement_;
  KeyRules rules_;
  HoldingRanks writers_;
  ckpt::DistSpec spec_;
  std::shared_ptr<const ValueTree> list_of_none_ = make_list_of_none();  // one for 10^5 of objects
  std::optional<uint32_t> rng_writer_;  // one for all, where the others' files are linked
};

}  // namespace

void add_torch_dist_files(TargetJob& job) {
  check_stackable(job);
  for (ckpt::NotCarried& lost : lost_attributes(job.source)) {
    job.target.not_carried.push_back(std::move(lost));
  }
  if (!job.source.model_metadata.empty()) {
    job.target.not_carried.push_back(
        {"_metadata of the model state dict",
         "module versions: torch_dist does not store them, and Megatron does not need them"});
  }
  DistWriter(job).run();
}

}  // namespace optim
