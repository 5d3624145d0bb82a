#pragma once

#include <vector>

#include <training/opened_training.h>
#include <training/report_page.h>

#include "report/page/rows.h"

namespace optim {

// Of parameters that have the state of an optimizer, in their order. `summary`: the groups that
// the rows' optimizer and group are of, and the step. Reads a part of the elements of large ones.
std::vector<UpdateNorm> list_updates(const OpenedTraining& checkpoint, const Summary& summary,
                                     const ReportRows& rows);

}  // namespace optim
