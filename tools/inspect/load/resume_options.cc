// What a user says of a Megatron run, and the certificate that it gets.
#include "inspect/load/resume_options.h"

#include <algorithm>
#include <ostream>

#include <common/json.h>
#include <common/option_values.h>
#include <common/text.h>

#include <ckpt/error.h>

#include "inspect/load/launch.h"

namespace tools::inspect {
namespace {

using nlohmann::json;

// A number, True, False and None as Python writes them, else a text.
json value_of(const std::string& text) {
  if (text == "True" || text == "true") return true;
  if (text == "False" || text == "false") return false;
  if (text == "None") return nullptr;
  const json number = json::parse(text, nullptr, false);
  return number.is_number() ? number : json(text);
}

std::string argument_name(std::string text) {
  text.erase(0, std::min(text.find_first_not_of('-'), text.size()));
  std::ranges::replace(text, '-', '_');
  return text;
}

void add_argument(json& changes, const std::string& argument) {
  const size_t equals = argument.find('=');
  const std::string name = argument_name(argument.substr(0, equals));
  if (name.empty()) {
    refuse_usage("--arg '" + ckpt::escaped(argument) + "' is not NAME or NAME=VALUE",
                 "as --arg lr=1e-4 or --arg no_load_optim");
  }
  changes[name] = equals == argument.npos ? json(true) : value_of(argument.substr(equals + 1));
}

json certificate_to_json(const ResumeCertificate& certificate) {
  json document = json_document();
  document["verdict"] = name(certificate.verdict);
  document["message"] = json_text(certificate.message);
  document["raised_at"] = certificate.place;
  document["reasons"] = json_list(certificate.reasons, [](const ResumeReason& reason) -> json {
    return {{"of", reason.of}, {"text", json_text(reason.text)}};
  });
  document["notes"] = json_texts(certificate.notes);
  document["mend"] = json_text(certificate.mend);
  document["ranks"] = json_list(certificate.ranks, [](const optim::RankReads& reads) -> json {
    return {{"rank", reads.rank},
            {"read_bytes", reads.read_bytes},
            {"tensors", reads.tensor_count},
            {"tensor_bytes", reads.tensor_bytes}};
  });
  return document;
}

// "  reads: 1.1 GB to 1.2 GB on each of 4 ranks, 4.6 GB in all; ..."
std::string reads_text(const std::vector<optim::RankReads>& ranks) {
  if (ranks.empty()) return {};
  uint64_t total = 0;
  for (const optim::RankReads& rank : ranks) total += rank.read_bytes;
  const auto [least, most] = std::ranges::minmax_element(ranks, {}, &optim::RankReads::read_bytes);
  const auto held = std::ranges::max_element(ranks, {}, &optim::RankReads::tensor_bytes);
  std::string text = "  reads: " + size_text(least->read_bytes);
  if (size_text(least->read_bytes) != size_text(most->read_bytes)) {
    text += " to " + size_text(most->read_bytes);
  }
  if (ranks.size() > 1) {
    text +=
        " on each of " + std::to_string(ranks.size()) + " ranks, " + size_text(total) + " in all";
  }
  if (held->tensor_count > 0) {
    text += "; at most " + count_text(held->tensor_count, "tensor") + " of " +
            size_text(held->tensor_bytes) + " on one";
  }
  return text + '\n';
}

int exit_code(ResumeVerdict verdict, bool accepts_next_step) {
  switch (verdict) {
    case ResumeVerdict::Continues: return 0;
    case ResumeVerdict::NextStepDiffers: return accepts_next_step ? 0 : 1;
    case ResumeVerdict::NotKnown: return 4;
    default: return 1;
  }
}

}  // namespace

void ResumeOptions::declare(CLI::App& app) {
  CLI::Validator is_known = one_of(tree_names());
  is_known.operation([listed = is_known](std::string& text) {
    return tree_named(text) ? std::string() : listed(text);
  });
  add_value(app, "--target-megatron RELEASE", target_megatron,
            "Megatron's release that is to load it")
      ->check(is_known);
  const auto add = [&](const char* names, std::optional<uint32_t>& size, const char* what) {
    add_size(app, names, size, what);
  };
  add("--tp,--tensor-model-parallel-size", sizes.tensor_parallel,
      "Tensor parallel size of the run");
  add("--pp,--pipeline-model-parallel-size", sizes.pipeline_parallel, "Pipeline parallel size");
  add("--vpp", sizes.virtual_pipeline_parallel, "Model chunks of each pipeline rank");
  add("--cp,--context-parallel-size", sizes.context_parallel, "Context parallel size");
  add("--ep,--expert-model-parallel-size", sizes.expert_parallel, "Expert parallel size");
  add("--etp,--expert-tensor-parallel-size", sizes.expert_tensor_parallel,
      "Expert tensor parallel size");
  add("--dp", sizes.data_parallel, "Data parallel size");
  add("--world-size", sizes.world_size, "Processes; default: as many as wrote it");
  add_value(app, "--arg NAME[=VALUE]", arguments,
            "An argument of the run that differs from the checkpoint's, by "
            "Megatron's name: lr=1e-4, no_load_optim; repeatable")
      ->allow_extra_args(false);
  add_value(app, "--launch FILE", launch,
            "How the run is started: its script or command line, or the arguments that it "
            "printed; data, nothing of it is run");
  app.add_flag("--accept-next-step", accepts_next_step,
               "Exit code 0, too, where the requested state is loaded and the next step differs");
}

bool ResumeOptions::are_given() const {
  return !target_megatron.empty() || !arguments.empty() || !launch.empty() || !sizes.empty();
}

ResumeRun ResumeOptions::run(const ResumeFacts& checkpoint) const {
  const auto tree = tree_named(target_megatron);
  if (!tree) {
    refuse_usage("which release of Megatron is to load it is not said",
                 "--target-megatron takes its name, --expect-keys the tensors of a model");
  }
  ResumeRun run{.tree = *tree};
  for (const auto& [name, size] : kSizeArguments) {
    if (sizes.*size) run.changes[name] = *(sizes.*size);
  }
  for (const std::string& argument : arguments) add_argument(run.changes, argument);
  for (const auto& [argument, value] : run.changes.items()) {
    std::string option = "--" + argument;
    std::ranges::replace(option, '_', '-');
    const bool is_given = !value.is_null() && value != false;
    if (is_given && where_is(option, *tree) == OptionIn::Others) run.unrecognized = option;
  }
  if (!launch.empty()) add_launch(read_launch(launch), checkpoint, run);
  uint64_t replica = 1;  // ranks of one
  for (const char* name :
       {"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"}) {
    const json size =
        run.changes.contains(name) ? run.changes[name] : checkpoint.args.value(name, json());
    replica *= size.is_number_integer() ? size.get<uint64_t>() : 1;
  }
  if (sizes.data_parallel) run.changes["world_size"] = *sizes.data_parallel * replica;
  const json processes = run.changes.value("world_size", json());
  const bool is_of_launch = !launch.empty() && !sizes.data_parallel && !sizes.world_size &&
                            processes.is_number_unsigned();
  if (is_of_launch && replica != 0 && processes.get<uint64_t>() % replica != 0) {
    run.missing = "how many processes there are: the launch starts " + processes.dump() +
                  ", and --tp x --pp x --cp is " + std::to_string(replica) +
                  ": --world-size or --dp says it";
  }
  return run;
}

std::string verdict_text(const ResumeCertificate& certificate) {
  switch (certificate.verdict) {
    case ResumeVerdict::Continues:
      return "continues: all state is loaded as it is stored (`verify` reads it), and the next "
             "step is the same";
    case ResumeVerdict::NextStepDiffers: return "loads, and the next step differs";
    case ResumeVerdict::LoadsWrong: return "loads wrong: nothing is raised";
    case ResumeVerdict::Refuses: return "refuses";
    case ResumeVerdict::NotKnown: return "not known: " + ckpt::escaped(certificate.message);
  }
  return {};
}

std::string details_text(const ResumeCertificate& certificate) {
  std::string text;
  if (certificate.verdict == ResumeVerdict::Refuses) {
    text += "  " + ckpt::escaped(certificate.message) + "\n  raised in " + certificate.place + "\n";
  }
  for (const ResumeReason& reason : certificate.reasons) {
    text += "  " + std::string(reason.of) + ": " + ckpt::escaped(reason.text) + "\n";
  }
  return text;
}

int print_certificate(Console& console, const ResumeCertificate& certificate,
                      bool accepts_next_step) {
  const int code = exit_code(certificate.verdict, accepts_next_step);
  if (console.options().json) {
    print_json(console, certificate_to_json(certificate));
    return code;
  }
  console.out() << verdict_text(certificate) << '\n';
  if (console.options().quiet) return code;
  console.out() << details_text(certificate);
  console.out() << reads_text(certificate.ranks);
  for (const std::string& note : certificate.notes) console.note(note);
  if (!certificate.mend.empty()) console.out() << "  instead: " << certificate.mend << '\n';
  return code;
}

}  // namespace tools::inspect
