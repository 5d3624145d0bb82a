#pragma once

#include <boost/test/unit_test.hpp>
#include <utility>
#include <vector>

#include <training/filed_state.h>

namespace test {

// Of tests/golden/lw_muon_bf16_*: two masters of one shape change places, which shapes alone do not
// show.
inline void swap_masters(optim::FiledState& state) {
  std::vector<optim::TensorRef*> alike;
  for (optim::TrainedParam& param : state.params) {
    if (param.info.name == "output_layer.weight" ||
        param.info.name == "embedding.word_embeddings.weight") {
      alike.push_back(&param.master);
    }
  }
  BOOST_REQUIRE(alike.size() == 2u);
  ckpt::TensorEntry first = **alike[0], second = **alike[1];
  std::swap(first.chunks, second.chunks);
  *alike[0] = std::make_shared<const ckpt::TensorEntry>(std::move(first));
  *alike[1] = std::make_shared<const ckpt::TensorEntry>(std::move(second));
}

}  // namespace test
