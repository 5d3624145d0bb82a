#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <training/opened_training.h>

namespace optim {

// Files of the Trainer of transformers, and of Accelerate's first rank; torchtitan's count.
inline constexpr const char* kTrainerState = "trainer_state.json";
inline constexpr const char* kAccelerateStates = "random_states_0.pkl";
inline constexpr const char* kTitanStepKey = "train_state.step";

// What a checkpoint that is not Megatron's says of the program that wrote it, and how far it was:
// keys at the root of a torch.save file or a DCP folder (Lightning, DeepSpeed, training loops), or
// files beside (the Trainer of transformers, Accelerate). All empty where it says nothing.
struct TrainerFacts {
  std::string trainer;  // "Lightning"; empty where none is named
  std::string version;  // as it is stored: "2.6.1", "transformers 4.57.1"
  std::optional<double> epoch;
  std::optional<int64_t> step;
  std::string step_key;  // what the step is called there: "global_step"
  std::string source;    // the file beside that says it: "trainer_state.json"; empty: its own keys

  bool empty() const { return trainer.empty() && !epoch && !step; }
};

TrainerFacts trainer_facts(const OpenedTraining& checkpoint);

// The value of a tensor of one element; nullopt for others.
std::optional<double> scalar_of(const ckpt::TensorEntry& tensor, const OpenedTraining& checkpoint);

}  // namespace optim
