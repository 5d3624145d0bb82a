#include <kernels/newton_schulz.h>

#include <utility>

#include "call_status.h"
#include "gram_newton_schulz.h"
#include "lt_matmul.h"
#include "symmetric_product.h"

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

}  // namespace

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
