#pragma once

#include <ckpt/target.h>
#include <training/convert.h>
#include <training/opened_training.h>

#include "convert/write_named.h"
#include "layouts/job/layer_wise_target.h"

// A folder of NeMo 2 whose conversion is one again: weights/ in NeMo's filing, and context/.
namespace optim {

// Where nothing else is asked for, of a checkpoint that NeMo saved with ckpt_parallel_save_optim,
// or without an optimizer.
bool stays_nemo(const FiledState& state, const Job& job, const ConvertOptions& options);

// Puts what was made of this job into weights/, beside the source's context/, whose model.yaml gets
// the target's sizes. Throws Unsupported where it is not known which rows NeMo's vocabulary has,
// and for a context of more than 256 MiB, which are held in memory.
void make_nemo_folder(const TargetJob& job, const OpenedTraining& source, ckpt::Target& target);

}  // namespace optim
