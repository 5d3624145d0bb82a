#pragma once

#include <map>
#include <string>
#include <vector>

#include <common/console.h>
#include <training/contents.h>
#include <training/groups.h>
#include <training/lineage.h>
#include <training/optimizer_facts.h>
#include <training/run_facts.h>
#include <training/summary.h>
#include <training/verify.h>
#include <nlohmann/json.hpp>

// What several commands, and the page of `report`, say of a checkpoint.
namespace tools::inspect {

// "[10, 16] of [38, 16]"; "[15], a part" where the shape of the whole is not known.
std::string shape_text_of(const ckpt::Extents& shape, const ckpt::TensorPart* part);

// The words, the shape where it is known, and whether the file holds all of it.
nlohmann::json to_json(const ckpt::TensorPart& part);
nlohmann::json to_json(const optim::FileOfSet& file);

// What the file is one of and which kinds of parts there are, on stdout below a listing.
void print_parts(Console& console, const optim::OpenedTraining& checkpoint,
                 const optim::RankParts& parts);
// The same as notes on stderr, where stdout is a record.
void note_parts(Console& console, const optim::OpenedTraining& checkpoint);

// Iteration folders of a root that were not looked at, since they are links that lead out of it.
void warn_of_elsewhere(Console& console, const std::vector<std::string>& names);

// What was checked and found, by label the bytes, and what was not checked or proven.
nlohmann::json verify_json(const optim::VerifyReport& report, bool quick);

// The lists "groups" and "ranks", and why parameters have no name where they do not.
void add_groups(nlohmann::json& document, const optim::GroupReport& report,
                const optim::RunFacts& run);

// What the page of summary and that of `report` have in common.
nlohmann::json to_json(const std::map<std::string, optim::Total>& totals);
nlohmann::json to_json(const std::vector<optim::OptimizerFacts>& optimizers);

nlohmann::json lineage_to_json(const optim::Lineage& lineage);

}  // namespace tools::inspect
