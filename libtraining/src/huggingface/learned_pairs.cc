#include "huggingface/learned_pairs.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ckpt/cast.h>
#include <ckpt/run_jobs.h>

namespace optim {
namespace {

constexpr uint64_t kVectorsMax = 4 << 20;  // 16 bytes each

uint64_t spread(uint64_t hash) { return hash * 0xBF58476D1CE4E5B9; }

}  // namespace

ContentIndex::ContentIndex(std::vector<LearnedTensor>& model, const ckpt::PayloadSource& payloads)
    : model_(model) {
  uint64_t count = 0;
  for (const LearnedTensor& tensor : model_) count += ckpt::count_vectors(tensor.entry->shape);
  if (count > kVectorsMax) hash_max_ = UINT64_MAX / count * kVectorsMax;
  std::mutex mutex;
  ckpt::run_jobs(model_.size(), ckpt::thread_count(0), [&](size_t i, unsigned) {
    LearnedTensor& tensor = model_[i];
    tensor.has_numbers = ckpt::can_round(tensor.entry->dtype);
    if (!tensor.has_numbers) return;
    ckpt::VectorPrint print = ckpt::print_of(*tensor.entry, payloads);
    std::vector<Vector> kept;
    add_vectors(static_cast<uint32_t>(i), print, kept);
    print.rows = {};
    print.columns = {};
    tensor.print = std::move(print);
    const std::lock_guard lock(mutex);
    vectors_.insert(vectors_.end(), kept.begin(), kept.end());
  });
  std::vector<bool> is_repeated(model_.size());
  for (uint32_t i = 0; i < model_.size(); ++i) {
    const LearnedTensor& tensor = model_[i];
    if (!tensor.has_numbers || tensor.print.is_constant) continue;
    auto& equal = by_whole_[tensor.print.whole];
    is_repeated[i] = !equal.empty();
    equal.push_back(i);
    if (tensor.entry->shape.size() != 1) continue;
    by_plus_[tensor.print.plus_one].push_back(i);
    by_minus_[tensor.print.minus_one].push_back(i);
  }
  std::erase_if(vectors_, [&](const Vector& vector) { return is_repeated[vector.tensor]; });
  std::ranges::sort(vectors_, {}, [](const Vector& vector) { return vector.hash; });
  // What is there twice tells nothing.
  size_t kept = 0;
  for (size_t at = 0, end = 0; at < vectors_.size(); at = end) {
    while (end < vectors_.size() && vectors_[end].hash == vectors_[at].hash) ++end;
    if (end == at + 1) vectors_[kept++] = vectors_[at];
  }
  vectors_.resize(kept);
}

void ContentIndex::add_vectors(uint32_t tensor, const ckpt::VectorPrint& print,
                               std::vector<Vector>& vectors) const {
  for (const bool is_column : {false, true}) {
    for (const uint64_t hash : is_column ? print.columns : print.rows) {
      if (hash == ckpt::VectorPrint::kNothing || spread(hash) > hash_max_) continue;
      vectors.push_back({hash, tensor, is_column});
    }
  }
}

const ContentIndex::Vector* ContentIndex::find(uint64_t hash) const {
  const auto found = std::ranges::lower_bound(vectors_, hash, {},
                                              [](const Vector& vector) { return vector.hash; });
  return found != vectors_.end() && found->hash == hash ? &*found : nullptr;
}

ContentMatch ContentIndex::match(LearnedTensor& tensor, const ckpt::PayloadSource& payloads) const {
  tensor.has_numbers = ckpt::can_round(tensor.entry->dtype);
  if (!tensor.has_numbers) return {};
  ckpt::VectorPrint print = ckpt::print_of(*tensor.entry, payloads);
  ContentMatch made;
  const auto take = [&](const auto& by_hash, int added) {
    const auto found = by_hash.find(print.whole);
    if (made.form != ContentMatch::Form::None || found == by_hash.end()) return;
    for (const uint32_t source : found->second) {
      if (model_[source].entry->shape == tensor.entry->shape) made.sources.push_back(source);
    }
    if (!made.sources.empty()) made.form = ContentMatch::Form::Whole;
    made.equals = made.sources;
    made.added = added;
  };
  if (!print.is_constant) {
    take(by_whole_, 0);
    if (tensor.entry->shape.size() == 1) {
      take(by_plus_, 1);
      take(by_minus_, -1);
    }
    if (made.form == ContentMatch::Form::None) made = match_vectors(print);
  }
  print.rows = {};
  print.columns = {};
  tensor.print = std::move(print);
  return made;
}

ContentMatch ContentIndex::match_vectors(const ckpt::VectorPrint& print) const {
  // Of the model's and of the folder's vectors, whether they are columns.
  std::map<std::pair<bool, bool>, std::map<uint32_t, uint64_t>> votes;
  for (const bool to_columns : {false, true}) {
    for (const uint64_t hash : to_columns ? print.columns : print.rows) {
      if (hash == ckpt::VectorPrint::kNothing || spread(hash) > hash_max_) continue;
      if (const Vector* const found = find(hash)) {
        ++votes[{found->is_column, to_columns}][found->tensor];
      }
    }
  }
  ContentMatch best;
  for (const auto& [form, by_tensor] : votes) {
    uint64_t count = 0;
    for (const auto& [tensor, number] : by_tensor) count += number;
    if (count <= best.vote_count) continue;
    best = {ContentMatch::Form::Vectors, {}, {}, 0, form.first, form.second, count};
    for (const auto& [tensor, number] : by_tensor) best.sources.push_back(tensor);
  }
  if (best.sources.size() == 1) {
    best.equals = by_whole_.at(model_[best.sources[0]].print.whole);
  }
  return best;
}

}  // namespace optim
