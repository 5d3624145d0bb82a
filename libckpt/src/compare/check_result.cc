// What was written, opened by the reader before it is published, and compared with its source.
#include <ckpt/archive_builder.h>
#include <ckpt/convert.h>
#include <ckpt/error.h>
#include <ckpt/write_target.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "base/byte_reader.h"
#include "codec/pickle_reader.h"
#include "codec/pickle_writer.h"
#include "read/payload_reader.h"
#include "targets/archive_writer.h"

namespace ckpt {
namespace {

[[noreturn]] void differs(const std::string& key, std::string_view how) {
  throw std::logic_error("the result differs from the source: '" + escaped(key) +
                         "': " + std::string(how) + "; nothing was published");
}

std::string_view explanation(DifferenceKind kind) {
  switch (kind) {
    case DifferenceKind::OnlyInA: return "is missing";
    case DifferenceKind::OnlyInB: return "is not in the source";
    case DifferenceKind::DType: return "has a different element type";
    case DifferenceKind::Shape: return "has a different shape";
    case DifferenceKind::Key: return "has a key of a different type";
    case DifferenceKind::Value: break;
  }
  return "has a different value";
}

// The object as a reader finds it in an archive that holds it alone.
ObjectTree as_written(const ObjectTree& object) {
  ArchiveBuilder builder;
  const Value root = object.document->tree.value(object.root);
  auto document =
      std::make_shared<Document>(builder.finish_document(builder.carry(root, *object.document)));
  const std::string bytes = pickle::write(document->tree, kArchivePickleProtocol);
  ByteReader reader(std::as_bytes(std::span(bytes)));
  document->tree = pickle::read(reader);
  ObjectTree written = object;
  written.root = document->tree.root().id();
  written.document = std::move(document);
  return written;
}

class ContentCheck {
 public:
  ContentCheck(const DiffSide& source, const DiffSide& written, const ResultCheck& check)
      : source_(source), written_(written), check_(check) {
    for (const NotCarried& listed : check.not_carried) {
      if (listed.missing_key) listed_.insert(*listed.missing_key);
    }
  }

  void run() const {
    DiffOptions names;
    names.keys_only = true;
    require(diff(source_, written_, names));
    require_same_objects();
    if (check_.values) require_same_values();
  }

 private:
  // A value has more than one pickle: what differs is compared again as the source's is written.
  void require_same_objects() const {
    Inventory a{{}, source_.inventory.objects}, b{{}, written_.inventory.objects};
    std::set<std::string, std::less<>> other_values;
    for (const ObjectDifference& object : diff_of(a, b).objects) {
      if (object.kind != DifferenceKind::Value) require(object.kind, object.key);
      other_values.insert(object.key);
    }
    const auto is_equal = [&](const ObjectTree& object) {
      return !other_values.contains(object.key);
    };
    std::erase_if(a.objects, is_equal);
    std::erase_if(b.objects, is_equal);
    for (ObjectTree& object : a.objects) object = as_written(object);
    require(diff_of(a, b));
  }

  // By value; points into the two.
  Differences diff_of(const Inventory& a, const Inventory& b) const {
    DiffOptions options;
    options.details_max = 0;
    options.execution = check_.execute;
    return diff({a, source_.source}, {b, written_.source}, options);
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
  void require_same_values() const {
    Inventory a, b;
    std::map<std::string_view, const TensorEntry*> by_key;
    for (const TensorEntry& tensor : written_.inventory.tensors)
      by_key.emplace(tensor.key, &tensor);
    for (const TensorEntry& tensor : source_.inventory.tensors) {
      const auto found = by_key.find(tensor.key);
      if (found == by_key.end()) continue;
      const auto stated = stated_checksum(tensor, source_.source);
      if (stated && stated == stated_checksum(*found->second, written_.source)) continue;
      a.tensors.push_back(tensor);
      b.tensors.push_back(*found->second);
    }
    require(diff_of(a, b));
  }

  const DiffSide& source_;
  const DiffSide& written_;
  const ResultCheck& check_;
  std::set<std::string, std::less<>> listed_;
};

}  // namespace

void require_same_content(const DiffSide& source, const DiffSide& written,
                          const ResultCheck& check) {
  ContentCheck(source, written, check).run();
}

Carried count_carried(const Checkpoint& result) {
  return {result.catalog().tensors.size(), result.catalog().objects.size()};
}

Checkpoint open_result(const std::filesystem::path& written, const OpenOptions& options) {
  try {
    return Checkpoint::open(written, options);
  } catch (const Error& error) {
    refuse_unreadable(error);
  }
}

void refuse_unreadable(const Error& error) {
  if (error.code() == ErrorCode::IoFailure) throw error;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = error.where().key},
              "the result could not be read back: " + error.problem(), error.hint());
}

void refuse_damage(const Findings& findings) {
  for (const Finding& finding : findings.findings) {
    if (finding.severity != Severity::Damage) continue;
    throw Error(ErrorCode::Corrupt,
                {finding.where.file, finding.where.offset_bytes, finding.where.key},
                "the result would not pass verify: " + finding.problem,
                "if ckpt-inspect verify reports the same for the source, it is carried unchanged "
                "without --verify");
  }
}

}  // namespace ckpt
