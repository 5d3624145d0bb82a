#pragma once

#include <vector>

#include <training/opened_training.h>
#include <training/report_page.h>
#include <training/training_state.h>

namespace optim {

// The tensors of a report, and where they are, by the same index.
struct ReportRows {
  std::vector<ReportedTensor> tensors;
  std::vector<TensorRef> entries;
};

// Each once as the training run has it where `view` names them, else as they are stored.
ReportRows list_rows(const OpenedTraining& checkpoint, const TrainingState* view);

}  // namespace optim
