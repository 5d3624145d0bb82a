#pragma once

#include <optional>
#include <string>

#include "format/joined/deepspeed_files.h"
#include "format/joined/joined_state.h"

namespace ckpt {

// The state dict that a DeepSpeed checkpoint becomes, as far as ZeRO's parts and universal
// checkpoints share it.
class DeepSpeedState {
 public:
  DeepSpeedState(const Location& location, const Limits& limits, Contents& contents)
      : files_(location, limits, contents) {}

 protected:
  ValueTree& tree() { return state_.tree(); }
  NodeId carry(const Value& value, const RankDocument& file) {
    return state_.carry(value, *file.document, file.name + ":");
  }
  // Of files that lack something tensors may have holes: None is in their place.
  void put(NodeId dict, const std::string& name, TensorEntry entry);
  TensorEntry entry_of(const Value& value, const RankDocument& file, const std::string& key) const;
  static TensorEntry in_fp32(TensorEntry entry);  // of 16 bits; others as they are

  // As they are in the model, floating ones in fp32.
  void add_buffers(const RankDocument& model);
  // Tied parameters: {one name: another that is there}.
  void add_shared(const RankDocument& model);
  // With the names of parameters for the numbers of flat groups.
  void add_groups(NodeId optimizer, const std::optional<Value>& groups, const RankDocument& file,
                  const RankDocument& model);
  // What is neither the model nor a part of it. `optimizer`: null in a universal checkpoint.
  void add_rest(const RankDocument& model, const RankDocument* optimizer);

  DeepSpeedFiles files_;
  JoinedState state_;
  NodeId root_ = state_.tree().dict();

 private:
  NodeId plain(const Value& value, const RankDocument& file);
};

}  // namespace ckpt
