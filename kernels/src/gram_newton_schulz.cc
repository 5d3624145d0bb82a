#include "gram_newton_schulz.h"

#include <algorithm>
#include <utility>

#include <kernels/combine.h>

#include "call_status.h"

namespace kernels {

cublasStatus_t GramNewtonSchulz::prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape) {
  shape_ = shape;
  const NsProducts products = newton_schulz_products(shape);
  const int64_t square = shape.polynomial_block;
  BlasStatus status;
  const auto make = [&](const NsProduct& whole, int64_t block,
                        std::unique_ptr<SymmetricProduct>& product) {
    status.then([&] {
      return make_symmetric_product(handle, {shape, whole, block, SymmetricBy::CublasLt}, product);
    });
  };
  make(products.gram, shape.gram_block, gram_);
  make(products.polynomial, square, polynomial_);
  make(products.half, square, half_);
  make(products.next_gram, square, next_gram_);
  make(products.factor, square, factor_);
  return status.then([&] { return update_.prepare(handle, shape, products.update); }).get();
}

// Some steps that multiply X once. Buffers change their roles, by their pointers.
class GramNewtonSchulz::Pass {
 public:
  Pass(const GramNewtonSchulz& products, const NewtonSchulzBuffers& buffers, cudaStream_t stream)
      : products_(products), at_(buffers), stream_(stream) {}

  cudaError_t run(const NewtonSchulzCoefficients* coefficients, int steps) {
    queue(*products_.gram_, {1, 0});
    for (int i = 0; i < steps; ++i) {
      const NewtonSchulzCoefficients& k = coefficients[i];
      queue_polynomial(k);
      if (i > 0) queue_factor(k.a);
      identity_ *= k.a;
      if (i + 1 < steps) queue_gram(k.a);
      if (i == 0) std::swap(at_.factor, at_.polynomial);  // it is the first factor
    }
    return status_
        .then([&] {
          return as_cuda_error(
              products_.update_.queue({1, static_cast<float>(identity_)}, at_, stream_));
        })
        .get();
  }

 private:
  void queue(const SymmetricProduct& product, NsScaling scaling) {
    status_.then([&] { return as_cuda_error(product.queue(scaling, at_, stream_)); });
  }

  void queue_sum(const CombineRequest& request) {
    status_.then([&] { return combine(request, stream_); });
  }
  int64_t count() const {
    const int64_t edge = std::min(products_.shape_.rows, products_.shape_.columns);
    return edge * edge * products_.shape_.batch;
  }

  void queue_polynomial(const NewtonSchulzCoefficients& k) {
    if (k.c != 0) return queue(*products_.polynomial_, {k.c, k.b});
    queue_sum({at_.polynomial, at_.gram, at_.gram, k.b, 0, products_.shape_.type, count()});
  }

  // factor = a factor + identity p + p factor.
  void queue_factor(float a) {
    queue_sum({at_.spare, at_.factor, at_.polynomial, a, static_cast<float>(identity_),
               products_.shape_.type, count()});
    queue(*products_.factor_, {1, 1});
    std::swap(at_.factor, at_.spare);
  }

  void queue_gram(float a) {
    queue(*products_.half_, {1, a});
    queue(*products_.next_gram_, {1, a});
  }

  const GramNewtonSchulz& products_;
  NewtonSchulzBuffers at_;
  cudaStream_t stream_;
  double identity_ = 1;
  Status status_;
};

cudaError_t GramNewtonSchulz::run(NewtonSchulzBuffers buffers,
                                  const NewtonSchulzCoefficients* coefficients, int steps,
                                  cudaStream_t stream) const {
  Status status;
  for (const int length : gram_passes(steps)) {
    status.then([&] { return Pass(*this, buffers, stream).run(coefficients, length); });
    coefficients += length;
    std::swap(buffers.iterate, buffers.next);
  }
  return status.get();
}

}  // namespace kernels
