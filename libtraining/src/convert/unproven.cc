#include "convert/unproven.h"

#include <ckpt/error.h>
#include <training/conservation.h>

#include "grid/whole_states.h"
#include "state/left_out.h"
#include "state/passing_proof.h"
#include "state/remainders.h"
#include "verify/checks.h"

namespace optim {

std::string naming_of(const FiledState& view) {
  return view.filed.is_zero1() ? "the order of the flat buffers" : "the ping-pong deal";
}

std::optional<std::string> why_not_proven(const FiledState& view, const OpenedTraining& source) {
  if (view.chain.empty()) return std::nullopt;
  if (has_remainders(view)) return kWhyRemaindersProveNothing;
  return why_weights_may_differ(source);
}

std::vector<std::string> states_not_proven(const FiledState& view) {
  LeftOut unexplained("parameter");
  for (const uint32_t i : find_stateless(view).unexplained) {
    unexplained.add(view.params[i].info.name, why_unexplained(view, view.params[i]));
  }
  std::vector<NotProven> found;
  unexplained.put_into(found);
  std::vector<std::string> lines;
  for (const NotProven& each : found) lines.push_back(each.what + ": " + each.reason);
  for (const std::string& counts : uneven_counts(view)) {
    lines.push_back("that every element is there: " + counts);
  }
  return lines;
}

void check_unproven(const FiledState& view, const OpenedTraining& source,
                    const std::stop_token& stop) {
  const std::string displaced = may_be_displaced(view, source);
  if (!displaced.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                      text_of_displaced(displaced),
                      "--model-only carries the weights, which are right");
  }
  require_remainders(view, source, stop);
  if (are_names_computed(view)) require_near_masters(view, source, stop);
}

}  // namespace optim
