// usage: example CHECKPOINT. Reads what a Megatron run would go on with, and lists the parameters:
// each whole and once, with the names of the states that the optimizer keeps of it.
#include <cstdio>

#include <ckpt/error.h>
#include <training/filed_state.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CHECKPOINT\n", argv[0]);
    return 2;
  }
  try {
    const optim::OpenedTraining checkpoint = optim::open_checkpoint(argv[1]);
    const optim::FiledState state = optim::read_training_state(checkpoint);
    for (const optim::TrainedParam& param : state.params) {
      std::printf("%s:", param.info.name.c_str());
      for (const optim::StateTensor& kept : param.states) std::printf(" %s", kept.name.c_str());
      std::printf("\n");
    }
    return state.params.empty() ? 1 : 0;
  } catch (const ckpt::Error& error) {  // not there, damaged, or of no optimizer that is known
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
