// What has changed between two checkpoints, by the rows of a report.
#include <training/report_page.h>

#include <map>

#include "report/page/rows.h"

namespace optim {
namespace {

// Keys by which a row may be named: as it is stored, or, where state dicts of two formats are
// compared by their places, as its weight is called.
class RowFinder {
 public:
  explicit RowFinder(const ReportRows& rows) {
    for (size_t i = 0; i < rows.entries.size(); ++i) {
      const ckpt::TensorEntry& entry = *rows.entries[i];
      rows_.try_emplace({entry.file, entry.key}, i);
    }
    for (size_t i = 0; i < rows.tensors.size(); ++i) {
      const LogicalTensor& tensor = rows.tensors[i].tensor;
      if (tensor.role == KeyKind::Model) rows_.try_emplace({"", tensor.name}, i);
    }
  }
  std::optional<size_t> find(const ckpt::TensorDifference& difference) const {
    if (difference.a == nullptr) return std::nullopt;
    const auto found = rows_.find({difference.file, difference.key});
    return found == rows_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::map<std::pair<std::string, std::string>, size_t> rows_;
};

}  // namespace

Comparison compare_with(const OpenedTraining& a, const ReportPage& page, const OpenedTraining& b,
                        const ckpt::DiffOptions& options) {
  Comparison comparison{names_in_common(a, b), {}, {}, {}};
  ckpt::DiffOptions changes = options;
  changes.changes = true;
  comparison.differences = diff({comparison.named.a, a}, {comparison.named.b, b}, changes);
  comparison.modules =
      summarize(Compared{comparison.differences, comparison.named.a, comparison.named.b});
  const RowFinder finder(list_rows(a, page.summary.groups.view.get()));
  for (const ckpt::TensorDifference& tensor : comparison.differences.tensors) {
    comparison.rows.push_back(finder.find(tensor));
  }
  return comparison;
}

}  // namespace optim
