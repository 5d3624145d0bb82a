#pragma once

#include <string>
#include <string_view>

#include <common/console.h>
#include <training/contents.h>
#include <nlohmann/json.hpp>

// What listings say of tensors that are parts of larger ones.
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

}  // namespace tools::inspect
