#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <kernels/newton_schulz.h>

#include "gpu_check/device_tensors.h"
#include "kernels/muon_twin.h"

namespace gpu_check {

inline DevicePointer uploaded(const std::vector<unsigned char>& bytes) {
  DevicePointer memory = allocate(bytes.size());
  require(cudaMemcpy(memory.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "upload");
  return memory;
}

inline std::vector<unsigned char> random_elements(kernels::ElementType type, int64_t count,
                                                  float scale) {
  std::vector<unsigned char> elements(static_cast<size_t>(count * kernels::bytes_of(type)));
  std::mt19937 random(static_cast<unsigned>(count));
  std::normal_distribution<float> normal(0, scale);
  for (int64_t i = 0; i < count; ++i) {
    kernels::store_bits(elements.data(), i, type, kernels::encode(type, normal(random)));
  }
  return elements;
}

// The mirror of symmetric products, bit by bit.
inline std::string check_mirror(kernels::ElementType type, int64_t edge, int64_t block) {
  constexpr int64_t kBatch = 3;
  std::vector<unsigned char> expected = random_elements(type, edge * edge * kBatch, 1);
  const DevicePointer memory = uploaded(expected);
  kernels::MirrorRequest request = {memory.get(), type, edge, kBatch, block};
  require(kernels::mirror_blocks(request, nullptr), "mirror_blocks");
  require(cudaDeviceSynchronize(), "the mirror");
  request.matrices = expected.data();
  kernels::mirror_twin(request);
  const auto found = download<unsigned char>(memory.get(), expected.size());
  return found == expected ? "" : "the mirrored matrices differ";
}

struct LtDestroy {
  void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
};

// Two Newton-Schulz steps, in blocks and in full, against the twin.
inline std::string check_products(const kernels::NewtonSchulzShape& shape, double tolerance) {
  using namespace kernels;
  const std::vector<NewtonSchulzCoefficients> coefficients = {{4.0848F, -6.8946F, 2.9270F},
                                                              {3.9505F, -6.3029F, 2.6377F}};
  const int64_t count = shape.rows * shape.columns * shape.batch;
  const int64_t edge = std::min(shape.rows, shape.columns);
  std::vector<unsigned char> x = random_elements(shape.type, count, 0.005F), next(x),
                             gram(random_elements(shape.type, edge * edge * shape.batch, 1)),
                             polynomial(gram);
  const DevicePointer device_x = uploaded(x), device_next = uploaded(next),
                      device_gram = uploaded(gram), device_polynomial = uploaded(polynomial),
                      workspace = allocate(kNewtonSchulzWorkspaceBytes);
  cublasLtHandle_t created = nullptr;
  require(cublasLtCreate(&created) == CUBLAS_STATUS_SUCCESS ? 0 : 1, "cublasLtCreate");
  const std::unique_ptr<cublasLtContext, LtDestroy> handle(created);
  NewtonSchulz plan;
  require(plan.prepare(created, shape), "prepare");
  require(plan.run({device_x.get(), device_next.get(), device_gram.get(), device_polynomial.get(),
                    workspace.get()},
                   coefficients.data(), 2, nullptr),
          "run");
  require(cudaDeviceSynchronize(), "the products");
  newton_schulz_twin(shape, {x.data(), next.data(), gram.data(), polynomial.data(), nullptr},
                     coefficients);
  const auto found = download<unsigned char>(device_x.get(), x.size());
  double difference = 0, total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double wanted = decode(shape.type, stored_bits(x.data(), i, shape.type));
    difference +=
        std::pow(decode(shape.type, stored_bits(found.data(), i, shape.type)) - wanted, 2);
    total += wanted * wanted;
  }
  const double relative = std::sqrt(difference / total);
  return relative <= tolerance ? "" : "differs by " + std::to_string(relative);
}

inline void run_product_checks(Report& report) {
  using kernels::ElementType, kernels::NewtonSchulzShape;
  for (const int64_t edge : {1, 33, 200}) {
    report.run("mirror of fp32, edge " + std::to_string(edge),
               [&] { return check_mirror(ElementType::F32, edge, 32); });
    report.run("mirror of bf16, edge " + std::to_string(edge),
               [&] { return check_mirror(ElementType::BF16, edge, 64); });
  }
  const NewtonSchulzShape shapes[] = {{160, 200, 2, ElementType::BF16, false, 64, 64},
                                      {200, 160, 2, ElementType::BF16, false, 64, 64},
                                      {160, 200, 1, ElementType::F32, false, 64, 64},
                                      {200, 160, 2, ElementType::F32, false, 32, 32},
                                      {160, 160, 3, ElementType::F32, false, 0, 0}};
  for (const NewtonSchulzShape& shape : shapes) {
    const double tolerance = shape.type == ElementType::BF16 ? 2e-2 : 1e-5;
    report.run("products of " + std::to_string(shape.rows) + " x " + std::to_string(shape.columns) +
                   ", blocks of " + std::to_string(shape.gram_block),
               [&] { return check_products(shape, tolerance); });
  }
}

}  // namespace gpu_check
