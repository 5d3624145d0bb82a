// What verify finds, as JSON.
#include "inspect/verify_json.h"

#include <common/json.h>

namespace tools::inspect {

nlohmann::json to_json(const ckpt::Finding& finding) {
  nlohmann::json json = {
      {"check", name(finding.check)},
      {"severity", finding.severity == ckpt::Severity::Damage ? "damage" : "note"},
      {"problem", json_text(finding.problem)}};
  if (!finding.where.file.empty()) json["file"] = json_text(finding.where.file);
  if (finding.where.offset_bytes) json["offset_bytes"] = *finding.where.offset_bytes;
  if (!finding.where.key.empty()) json["key"] = json_text(finding.where.key);
  if (!finding.hint.empty()) json["hint"] = json_text(finding.hint);
  return json;
}

nlohmann::json to_json(const std::vector<optim::NotChecked>& list) {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [what, reason] : list) {
    json.push_back({{"what", json_text(what)}, {"reason", json_text(reason)}});
  }
  return json;
}

nlohmann::json counts_json(const optim::VerifyReport& report) {
  return {{"allowed_nonfinite",
           {{"tensors", report.allowed_tensor_count}, {"values", report.allowed_value_count}}},
          {"checked",
           {{"checksums", report.findings.compared_checksums},
            {"masters", report.master_count},
            {"states", report.state_count},
            {"tensors", report.tensor_count},
            {"groups", report.group_count},
            {"promised_states", report.promised_state_count}}},
          {"passed",
           {{"checksums", report.findings.compared_checksums - report.findings.failed_checksums},
            {"masters", report.matching_master_count},
            {"states", report.sound_state_count},
            {"tensors", report.sound_tensor_count},
            {"promised_states", report.kept_state_count},
            {"promised_digest", report.has_promised_digest}}}};
}

}  // namespace tools::inspect
