#include "verify/known_beside.h"

#include <ckpt/folder_convention.h>
#include <ckpt/glob.h>

namespace ckpt {
namespace {

// Hugging Face's Trainer and models, Accelerate's save_state, PEFT, DeepSpeed.
constexpr Companion kKnown[] = {
    {"optimizer.pt", "the optimizer's state, as the Trainer of transformers saves it"},
    {"optimizer*.bin", "an optimizer's state, as Accelerate saves it"},
    {"scheduler.pt", "the learning rate scheduler's state"},
    {"scheduler*.bin", "a learning rate scheduler's state, as Accelerate saves it"},
    {"scaler.pt", "the gradient scaler's state"},
    {"rng_state*.pth", "random number states"},
    {"random_states_*.pkl", "random number states, as Accelerate saves them"},
    {"sampler*.bin", "a sampler's state, as Accelerate saves it"},
    {"dl_state_dict*.bin", "a data loader's state, as Accelerate saves it"},
    {"custom_checkpoint_*.pkl", "an object that was registered with Accelerate"},
    {"trainer_state.json", "the progress of a run of transformers' Trainer"},
    {"training_args.bin", "the arguments of transformers' Trainer"},
    {"config.json", "the model's configuration"},
    {"generation_config.json", "the model's settings for generation"},
    {"adapter_config.json", "the adapter's configuration"},
    {"*_model_states.pt", "one rank's model of a DeepSpeed run"},
    {"*_optim_states.pt", "one rank's optimizer state of a DeepSpeed run"},
    {"pytorch_model*.bin", "weights that torch.save wrote"},
    {"tokenizer*.json", "the tokenizer"},
    {"special_tokens_map.json", "the tokenizer"},
    {"added_tokens.json", "the tokenizer"},
    {"vocab.json", "the tokenizer"},
};

}  // namespace

std::string_view known_beside(const std::string& name) {
  for (const Companion& known : kKnown) {
    if (Glob(known.name).matches(name)) return known.what;
  }
  return {};
}

}  // namespace ckpt
