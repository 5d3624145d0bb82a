#include <kernels/newton_schulz.h>

#include <algorithm>
#include <utility>

#include <kernels/symmetric.h>

#include "call_status.h"
#include "products.h"

namespace kernels {
namespace {

bool is_block(int64_t block) { return block >= 0 && block % kMirrorTile == 0; }

bool can_run(const NewtonSchulzShape& shape) {
  return shape.rows > 0 && shape.columns > 0 && shape.batch > 0 && shape.batch <= INT32_MAX &&
         is_block(shape.gram_block) && is_block(shape.polynomial_block) &&
         (shape.type == (shape.on_gram ? ElementType::F16 : ElementType::BF16) ||
          shape.type == ElementType::F32) &&
         (!shape.on_gram || has_gram_shape(shape.rows, shape.columns));
}

// The whole product's tile.
cublasStatus_t ask_tile(cublasLtHandle_t handle, const NewtonSchulzShape& shape,
                        const NsProduct& whole, ProductTile& tile) {
  LtMatmul matmul;
  const cublasStatus_t status = matmul.prepare(handle, shape, whole);
  if (status == CUBLAS_STATUS_SUCCESS) tile = matmul.tile();
  return status;
}

// --- on the Gram matrix ---

// Newton-Schulz on the Gram matrix R = X X^T of a batch, for NewtonSchulz: with p = b R + c R R a
// step is R = (a + p) R (a + p), and the steps of a pass together multiply X by identity + factor.
// Multiples of the identity are kept apart, where they are exact. All square products are
// symmetric, since polynomials of one matrix commute.
class GramNewtonSchulz {
 public:
  cublasStatus_t prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape);
  cudaError_t run(NewtonSchulzBuffers buffers, const NewtonSchulzCoefficients* coefficients,
                  int steps, cudaStream_t stream) const;

 private:
  class Pass;

  NewtonSchulzShape shape_ = {};
  std::unique_ptr<SymmetricProduct> gram_, polynomial_, half_, next_gram_, factor_;
  LtMatmul update_;
};

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

}  // namespace

// --- on the matrix itself ---

struct NewtonSchulz::Products {
  std::unique_ptr<SymmetricProduct> gram, polynomial;
  LtMatmul update;
  std::unique_ptr<GramNewtonSchulz> on_gram;  // instead of all these
};

NewtonSchulz::NewtonSchulz() = default;
NewtonSchulz::NewtonSchulz(NewtonSchulz&&) noexcept = default;
NewtonSchulz& NewtonSchulz::operator=(NewtonSchulz&&) noexcept = default;
NewtonSchulz::~NewtonSchulz() = default;

cudaError_t choose_blocks(cublasLtHandle_t handle, const DeviceRates& rates,
                          NewtonSchulzShape& shape) {
  if (!can_run(shape)) return cudaErrorInvalidValue;
  const NsProducts products = newton_schulz_products(shape);
  ProductTile gram, polynomial;
  const cublasStatus_t status =
      BlasStatus()
          .then([&] { return ask_tile(handle, shape, products.gram, gram); })
          .then([&] { return ask_tile(handle, shape, products.polynomial, polynomial); })
          .get();
  if (status == CUBLAS_STATUS_SUCCESS) choose_blocks(rates, gram, polynomial, shape);
  return as_cuda_error(status);
}

cudaError_t NewtonSchulz::prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape) {
  if (!can_run(shape)) return cudaErrorInvalidValue;
  auto made = std::make_unique<Products>();
  if (shape.on_gram) {
    made->on_gram = std::make_unique<GramNewtonSchulz>();
    const cublasStatus_t status = made->on_gram->prepare(handle, shape);
    if (status == CUBLAS_STATUS_SUCCESS) products_ = std::move(made);
    return as_cuda_error(status);
  }
  const NsProducts products = newton_schulz_products(shape);
  const cublasStatus_t status =
      BlasStatus()
          .then([&] {
            return make_symmetric_product(
                handle, {shape, products.gram, shape.gram_block, shape.gram_by}, made->gram);
          })
          .then([&] {
            return make_symmetric_product(
                handle, {shape, products.polynomial, shape.polynomial_block, shape.polynomial_by},
                made->polynomial);
          })
          .then([&] { return made->update.prepare(handle, shape, products.update); })
          .get();
  if (status == CUBLAS_STATUS_SUCCESS) products_ = std::move(made);
  return as_cuda_error(status);
}

cudaError_t NewtonSchulz::bind(const NewtonSchulzBuffers& buffers) {
  if (products_ == nullptr) return cudaErrorInvalidValue;
  if (products_->on_gram) return cudaSuccess;  // all of them are cuBLASLt's
  return Status()
      .then([&] { return products_->gram->bind(buffers); })
      .then([&] { return products_->polynomial->bind(buffers); })
      .get();
}

cudaError_t NewtonSchulz::run(const NewtonSchulzBuffers& buffers,
                              const NewtonSchulzCoefficients* coefficients, int steps,
                              cudaStream_t stream) const {
  if (products_ == nullptr || steps < 0) return cudaErrorInvalidValue;
  if (products_->on_gram) return products_->on_gram->run(buffers, coefficients, steps, stream);
  NewtonSchulzBuffers current = buffers;
  BlasStatus status;
  for (int i = 0; i < steps; ++i) {
    const NsStep step = ns_step_of(coefficients[i]);
    status.then([&] { return products_->gram->queue({1, 0}, current, stream); });
    if (step.has_polynomial) {
      status.then([&] { return products_->polynomial->queue(step.polynomial, current, stream); });
    }
    status.then([&] {
      return products_->update.queue(step.update, buffers_of_update(current, step), stream);
    });
    std::swap(current.iterate, current.next);
  }
  return as_cuda_error(status.get());
}

}  // namespace kernels
