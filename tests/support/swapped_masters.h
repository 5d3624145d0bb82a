#pragma once

#include <boost/test/unit_test.hpp>
#include <utility>
#include <vector>

#include <optim/layer_wise_checkpoint.h>

namespace test {

// Of tests/golden/lw_muon_bf16_*: two masters of one shape change places, which shapes alone do not
// show.
inline void swap_masters(optim::LayerWiseCheckpoint& view) {
  std::vector<ckpt::TensorEntry*> alike;
  for (auto& tensor : view.tensors.tensors) {
    if (tensor.key == "optimizer.state.fp32_param.output_layer.weight" ||
        tensor.key == "optimizer.state.fp32_param.embedding.word_embeddings.weight") {
      alike.push_back(&tensor);
    }
  }
  BOOST_REQUIRE(alike.size() == 2u);
  std::swap(alike[0]->chunks, alike[1]->chunks);
}

}  // namespace test
