#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpu_check/check_products.h"
#include "products.h"

// Hopper's own symmetric products against cuBLASLt's: of whole numbers, whose sums are exact in
// fp32, bit for bit; of others within their rounding, and a sample of rows against sums in fp64.
namespace gpu_check {

struct MirroredShape {
  int64_t rows, columns, batch;
};

class MirroredCheck {
 public:
  MirroredCheck(const MirroredShape& size, kernels::SymmetricBy by)
      : shape_{size.rows, size.columns, size.batch, kBF16, false},
        by_(by),
        edge_(std::min(size.rows, size.columns)),
        squares_(static_cast<size_t>(edge_ * edge_ * size.batch)) {
    cublasLtHandle_t created = nullptr;
    require(cublasLtCreate(&created) == CUBLAS_STATUS_SUCCESS ? 0 : 1, "cublasLtCreate");
    handle_.reset(created);
  }

  // X X^T or X^T X; alpha 1.
  std::string gram(bool whole_numbers) {
    const auto count = static_cast<size_t>(shape_.rows * shape_.columns * shape_.batch);
    const auto product = kernels::newton_schulz_products(shape_).gram;
    factor_ = elements(count, whole_numbers);
    return compare(product, {1, 0}, whole_numbers);
  }

  // c A A + b A, of a symmetric A.
  std::string polynomial(bool whole_numbers) {
    const auto product = kernels::newton_schulz_products(shape_).polynomial;
    factor_ = elements(squares_, whole_numbers);
    for (int64_t m = 0; m < shape_.batch; ++m) {
      uint16_t* const matrix = factor_.data() + m * edge_ * edge_;
      for (int64_t row = 0; row < edge_; ++row) {
        for (int64_t column = 0; column < row; ++column) {
          matrix[row * edge_ + column] = matrix[column * edge_ + row];
        }
      }
    }
    const kernels::NsScaling exact = {1, -2}, usual = {2.0315F, -4.7750F};
    return compare(product, whole_numbers ? exact : usual, whole_numbers);
  }

 private:
  using Elements = std::vector<uint16_t>;
  static constexpr auto kBF16 = kernels::ElementType::BF16;
  static constexpr uint16_t kUnwritten = 0x7FC1;

  static float value_of(uint16_t bits) { return kernels::decode(kBF16, bits); }

  static Elements elements(size_t count, bool whole_numbers) {
    std::minstd_rand random(static_cast<unsigned>(count) % 65521 + 1);
    std::normal_distribution<float> normal;
    uint16_t pool[4096];  // millions are needed, and drawing each takes long
    for (uint16_t& element : pool) {
      const float value =
          whole_numbers ? static_cast<float>(static_cast<int>(random() % 9) - 4) : normal(random);
      element = static_cast<uint16_t>(kernels::encode(kBF16, value));
    }
    Elements made(count);
    for (uint16_t& element : made) element = pool[random() >> 3 & 4095];
    return made;
  }

  static DevicePointer on_device(const Elements& values) {
    DevicePointer memory = allocate(values.size() * 2);
    require(cudaMemcpy(memory.get(), values.data(), values.size() * 2, cudaMemcpyHostToDevice),
            "upload");
    return memory;
  }

  Elements product_by(kernels::SymmetricBy by, const kernels::NsProduct& product,
                      kernels::NsScaling scaling) {
    const DevicePointer factor = on_device(factor_), spare = allocate(factor_.size() * 2),
                        result = on_device(Elements(squares_, kUnwritten)),
                        workspace = allocate(kernels::kNewtonSchulzWorkspaceBytes);
    const bool is_gram = product.d == kernels::NsOperand::Gram;
    // Of the polynomial the factor is the gram.
    const kernels::NewtonSchulzBuffers buffers = {factor.get(), spare.get(),
                                                  is_gram ? result.get() : factor.get(),
                                                  result.get(), workspace.get()};
    std::unique_ptr<kernels::SymmetricProduct> made;
    require(kernels::as_cuda_error(
                make_symmetric_product(handle_.get(), {shape_, product, 0, by}, made)),
            "prepare");
    require(made->bind(buffers), "bind");
    require(kernels::as_cuda_error(made->queue(scaling, buffers, nullptr)), "queue");
    require(cudaDeviceSynchronize(), "the product");
    return download<uint16_t>(result.get(), squares_);
  }

  std::string compare(const kernels::NsProduct& product, kernels::NsScaling scaling,
                      bool whole_numbers) {
    const Elements found = product_by(by_, product, scaling);
    if (product_by(by_, product, scaling) != found) return "the second run has other bits";
    const Elements expected = product_by(kernels::SymmetricBy::CublasLt, product, scaling);
    const double magnitude = std::sqrt(static_cast<double>(product.k)) * std::fabs(scaling.alpha);
    for (size_t i = 0; i < squares_; ++i) {
      const auto place = static_cast<int64_t>(i) % (edge_ * edge_);
      const size_t matrix = i - static_cast<size_t>(place);
      const auto mirrored = static_cast<size_t>(place % edge_ * edge_ + place / edge_);
      if (found[i] != found[matrix + mirrored]) return at(place) + " is not symmetric";
      const double difference = std::fabs(value_of(found[i]) - value_of(expected[i]));
      // Two roundings of 8 bits, and sums in another order.
      const double most = std::fabs(value_of(expected[i])) / 128 + 1e-4 * magnitude;
      const bool is_same = whole_numbers ? found[i] == expected[i] : difference <= most;
      if (!is_same) {
        return at(place) + " is " + std::to_string(value_of(found[i])) + ", cuBLASLt's " +
               std::to_string(value_of(expected[i]));
      }
    }
    return compare_rows(product, scaling, found);
  }

  std::string at(int64_t place) const {
    return "element " + std::to_string(place / edge_) + ", " + std::to_string(place % edge_);
  }

  // Some rows of the first matrix and of the last, in fp64.
  std::string compare_rows(const kernels::NsProduct& p, kernels::NsScaling scaling,
                           const Elements& found) const {
    const bool has_columns = p.transpose_b && !p.transpose_a;
    std::mt19937 random(1);
    for (int sample = 0; sample < (edge_ > 1024 ? 4 : 16); ++sample) {
      const int64_t matrix = sample % 2 == 0 ? 0 : shape_.batch - 1;
      const auto row = static_cast<int64_t>(random() % static_cast<uint64_t>(edge_));
      for (int64_t column = 0; column < edge_; ++column) {
        const auto factor = [&](int64_t i, int64_t k) {
          const int64_t place = has_columns ? k * edge_ + i : i * p.k + k;
          return double{value_of(factor_[static_cast<size_t>(matrix * edge_ * p.k + place)])};
        };
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k) sum += factor(row, k) * factor(column, k);
        const double added = scaling.beta == 0 ? 0 : scaling.beta * factor(row, column);
        const double wanted = scaling.alpha * sum + added;
        const auto place = static_cast<size_t>((matrix * edge_ + row) * edge_ + column);
        const double most =
            std::fabs(wanted) / 256 + 1e-5 * std::fabs(scaling.alpha) * static_cast<double>(p.k);
        if (std::fabs(value_of(found[place]) - wanted) > most) {
          return at(row * edge_ + column) + " is " + std::to_string(value_of(found[place])) +
                 ", in fp64 " + std::to_string(wanted);
        }
      }
    }
    return "";
  }

  kernels::NewtonSchulzShape shape_;
  kernels::SymmetricBy by_;
  int64_t edge_;
  size_t squares_;
  Elements factor_;
  std::unique_ptr<cublasLtContext, LtDestroy> handle_;
};

inline bool is_hopper() {
  kernels::DeviceRates rates;
  require(kernels::device_rates(&rates), "device_rates");
  return rates.major == 9 && rates.minor == 0;
}

inline void run_mirrored_checks(Report& report, bool is_quick) {
  using kernels::SymmetricBy;
  if (!is_hopper()) {
    std::cout << "products by tiles: not for this device\n";
    return;
  }
  std::vector<MirroredShape> shapes = {{64, 64, 1}, {136, 200, 3}, {200, 136, 3}};
  if (!is_quick) {
    shapes.insert(shapes.end(), {{520, 4096, 2},
                                 {4096, 520, 2},
                                 {1024, 1024, 16},
                                 {4096, 4096, 1},
                                 {4096, 11008, 1},
                                 {11008, 4096, 1}});
  }
  for (const MirroredShape& shape : shapes) {
    for (const SymmetricBy by : {SymmetricBy::TilesAlone, SymmetricBy::TilesInPairs}) {
      for (const bool whole : {true, false}) {
        const std::string name = std::string(whole ? "whole numbers, " : "numbers, ") +
                                 std::to_string(shape.batch) + " of " + std::to_string(shape.rows) +
                                 " x " + std::to_string(shape.columns) +
                                 (by == SymmetricBy::TilesAlone ? ", tiles alone" : ", in pairs");
        MirroredCheck check(shape, by);
        report.run("gram of " + name, [&] { return check.gram(whole); });
        report.run("polynomial of " + name, [&] { return check.polynomial(whole); });
      }
    }
  }
}

}  // namespace gpu_check
