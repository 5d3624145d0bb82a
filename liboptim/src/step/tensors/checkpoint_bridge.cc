#include <optim/checkpoint_bridge.h>

#include <ATen/ops/empty.h>

#include <ckpt/error.h>
#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace optim {
namespace {

using ckpt::DType;

constexpr std::array<std::pair<DType, at::ScalarType>, 21> kTypes = {{
    {DType::Float32, at::ScalarType::Float},
    {DType::Float64, at::ScalarType::Double},
    {DType::Float16, at::ScalarType::Half},
    {DType::BFloat16, at::ScalarType::BFloat16},
    {DType::UInt8, at::ScalarType::Byte},
    {DType::Int8, at::ScalarType::Char},
    {DType::Int16, at::ScalarType::Short},
    {DType::Int32, at::ScalarType::Int},
    {DType::Int64, at::ScalarType::Long},
    {DType::UInt16, at::ScalarType::UInt16},
    {DType::UInt32, at::ScalarType::UInt32},
    {DType::UInt64, at::ScalarType::UInt64},
    {DType::Bool, at::ScalarType::Bool},
    {DType::Complex32, at::ScalarType::ComplexHalf},
    {DType::Complex64, at::ScalarType::ComplexFloat},
    {DType::Complex128, at::ScalarType::ComplexDouble},
    {DType::Float8E4M3FN, at::ScalarType::Float8_e4m3fn},
    {DType::Float8E4M3FNUZ, at::ScalarType::Float8_e4m3fnuz},
    {DType::Float8E5M2, at::ScalarType::Float8_e5m2},
    {DType::Float8E5M2FNUZ, at::ScalarType::Float8_e5m2fnuz},
    {DType::Float8E8M0FNU, at::ScalarType::Float8_e8m0fnu},
}};

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {}, "an element type unknown to LibTorch");
}

DType dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {},
                    std::string("no checkpoint holds elements of type ") + c10::toString(type));
}

at::Tensor load_tensor(const ckpt::Checkpoint& checkpoint, const ckpt::TensorEntry& entry) {
  const std::vector<int64_t> shape(entry.shape.begin(), entry.shape.end());
  at::Tensor tensor = at::empty(shape, scalar_type(entry.dtype));
  const std::span<std::byte> bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()),
                                   static_cast<size_t>(ckpt::count_bytes(entry)));
  checkpoint.read(entry, ckpt::whole(entry.shape), bytes);
  return tensor;
}

TensorHandle handle_of(const at::Tensor& tensor) {
  return {.identity = tensor.unsafeGetTensorImpl(),
          .dtype = dtype_of(tensor.scalar_type()),
          .shape = Shape(tensor.sizes().begin(), tensor.sizes().end()),
          .tensor = std::make_shared<const at::Tensor>(tensor)};
}

at::Tensor tensor_of(const TensorHandle& handle) {
  return *static_cast<const at::Tensor*>(handle.tensor.get());
}

}  // namespace optim
