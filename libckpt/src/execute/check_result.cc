// What was written, opened by the reader before it is published, and compared with its source.
#include <ckpt/convert.h>
#include <ckpt/error.h>

#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "execute/stated_checksum.h"
#include "format/plain_state.h"

namespace ckpt {
namespace {

[[noreturn]] void differs(const std::string& key, std::string_view how) {
  throw std::logic_error("what was written is not what the source holds: '" + escaped(key) +
                         "': " + std::string(how) + "; nothing was published");
}

std::string_view explanation(DifferenceKind kind) {
  switch (kind) {
    case DifferenceKind::OnlyInA: return "is missing";
    case DifferenceKind::OnlyInB: return "is not in the source";
    case DifferenceKind::DType: return "has another type";
    case DifferenceKind::Shape: return "has another shape";
    case DifferenceKind::Value: break;
  }
  return "has another value";
}

class ContentCheck {
 public:
  ContentCheck(const DiffSide& source, const DiffSide& written, const ResultCheck& check)
      : source_(source), written_(written), check_(check) {
    for (const NotCarried& listed : check.not_carried) listed_.insert(listed.what);
  }

  void run() const {
    DiffOptions names;
    names.keys_only = true;
    require(diff(tensors_alone(source_), tensors_alone(written_), names));
    require(diff(objects_alone(source_), objects_alone(written_), values()));
    if (check_.values) require(diff_of_values());
  }

 private:
  // Inventories that a Side refers to.
  struct Side {
    Inventory inventory;
    const PayloadSource& source;
  };

  static Differences diff(const Side& a, const Side& b, const DiffOptions& options) {
    Differences found = ckpt::diff({a.inventory, a.source}, {b.inventory, b.source}, options);
    for (TensorDifference& tensor : found.tensors) tensor.a = tensor.b = nullptr;
    return found;
  }

  static Side tensors_alone(const DiffSide& side) {
    return {{side.inventory.tensors, {}}, side.source};
  }
  static Side objects_alone(const DiffSide& side) {
    return {{{}, side.inventory.objects}, side.source};
  }

  DiffOptions values() const {
    DiffOptions options;
    options.details_max = 0;
    options.execution = check_.execute;
    return options;
  }

  void require(const Differences& found) const {
    for (const TensorDifference& tensor : found.tensors) require(tensor.kind, tensor.key);
    for (const ObjectDifference& object : found.objects) require(object.kind, object.key);
  }

  void require(DifferenceKind kind, const std::string& key) const {
    const bool is_listed = kind == DifferenceKind::OnlyInA && listed_.contains(key);
    if (!is_listed) differs(key, explanation(kind));
  }

  // Of tensors that both have: those whose checksums do not say that they are equal are read.
  Differences diff_of_values() const {
    Side a{{}, source_.source}, b{{}, written_.source};
    std::map<std::string_view, const TensorEntry*> by_key;
    for (const TensorEntry& tensor : written_.inventory.tensors)
      by_key.emplace(tensor.key, &tensor);
    for (const TensorEntry& tensor : source_.inventory.tensors) {
      const auto found = by_key.find(tensor.key);
      if (found == by_key.end()) continue;
      const auto stated = stated_checksum(tensor, source_.source);
      if (stated && stated == stated_checksum(*found->second, written_.source)) continue;
      a.inventory.tensors.push_back(tensor);
      b.inventory.tensors.push_back(*found->second);
    }
    return diff(a, b, values());
  }

  const DiffSide& source_;
  const DiffSide& written_;
  const ResultCheck& check_;
  std::set<std::string, std::less<>> listed_;
};

bool is_none(const PlainEntry& entry) {
  return !entry.tensor && entry.document->tree.value(entry.node).is_none();
}

// Elements of lists that have no entry are None where lists are whole again.
void leave_out_holes(const PlainState& source, PlainState& written) {
  std::set<std::string_view> keys;
  for (const PlainEntry& entry : source.entries) keys.insert(entry.key);
  std::erase_if(written.entries, [&](const PlainEntry& entry) {
    return is_none(entry) && !keys.contains(entry.key);
  });
}

// A plain state dict under flattened keys.
Inventory inventory_of(const PlainState& state) {
  Inventory inventory;
  for (const PlainEntry& entry : state.entries) {
    if (entry.tensor) {
      inventory.tensors.push_back(*entry.tensor);
      inventory.tensors.back().file.clear();
      inventory.tensors.back().key = entry.key;
    } else {
      inventory.objects.push_back({"", entry.key, entry.document, entry.node, false});
    }
  }
  return inventory;
}

}  // namespace

void require_same_content(const DiffSide& source, const DiffSide& written,
                          const ResultCheck& check) {
  ContentCheck(source, written, check).run();
}

Checkpoint open_result(const std::filesystem::path& written, const Limits& limits) {
  try {
    return Checkpoint::open(written, {std::nullopt, limits});
  } catch (const Error& error) {
    refuse_unreadable(error);
  }
}

void refuse_unreadable(const Error& error) {
  if (error.code() == ErrorCode::IoFailure) throw error;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = error.where().key},
              "what would be written could not be read again: " + error.problem(), error.hint());
}

void check_plain_result(const Checkpoint& source, const TargetSpec& spec,
                        const std::filesystem::path& written, const ResultCheck& check) {
  PlainState state = read_plain_state(source, "");
  apply(spec.keys, state);
  const Checkpoint result = open_result(written, source.limits());
  PlainState result_state = read_plain_state(result, "");
  leave_out_holes(state, result_state);
  const Inventory wanted = inventory_of(state), found = inventory_of(result_state);
  require_same_content({wanted, source}, {found, result}, check);
}

void refuse_damage(const Findings& findings) {
  for (const Finding& finding : findings.findings) {
    if (finding.severity != Severity::Damage) continue;
    throw Error(ErrorCode::Corrupt,
                {finding.where.file, finding.where.offset_bytes, finding.where.key},
                "what would be written does not pass verify: " + finding.problem,
                "where ckpt-inspect verify finds the same in the source, it is carried without "
                "--verify as it is");
  }
}

}  // namespace ckpt
