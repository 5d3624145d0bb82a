// The kernels' formulas as loops over memory of the host.
#include "step/device/element_updates.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "step/loops/cpu_dispatch.h"

namespace optim {
namespace {

using kernels::ElementType;

constexpr int64_t kBlock = 1024;  // elements between whose loops nothing leaves the nearest cache

struct Block {
  float grad[kBlock];
  float absent[2][kBlock];  // stands for states that the rule does not have
};

// As the kernels convert, NaN included, which to them is all ones but for the sign.
[[gnu::always_inline]] inline float value_of(ElementType type, uint32_t bits) {
  switch (type) {
    case ElementType::F32: return std::bit_cast<float>(bits);
    case ElementType::BF16: return std::bit_cast<float>(bits << 16U);
    default: return c10::detail::fp16_ieee_to_fp32_value(static_cast<uint16_t>(bits));
  }
}

template <ElementType kType>
[[gnu::always_inline]] inline uint16_t rounded_bits(float value) {
  constexpr uint16_t kNaN = 0x7FFF;
  if constexpr (kType == ElementType::BF16) {
    return std::isnan(value) ? kNaN : bf16_bits(value);
  } else {
    return std::isnan(value) ? kNaN : c10::detail::fp16_ieee_from_fp32_value(value);
  }
}

template <ElementType kType, class Bits>
[[gnu::always_inline]] inline void load_as(const ElementSpan& span, float* to) {
  const auto* const from = static_cast<const Bits*>(span.grad);
  const float scale = span.inverse_loss_scale, clip = span.clip;
#pragma GCC ivdep
  for (int64_t i = 0; i < span.count; ++i) {
    to[i] = value_of(kType, from[i]) * scale * clip;
  }
}

[[gnu::always_inline]] inline void load_grads(const ElementSpan& span, float* to) {
  switch (span.grad_type) {
    case ElementType::F32: return load_as<ElementType::F32, uint32_t>(span, to);
    case ElementType::BF16: return load_as<ElementType::BF16, uint16_t>(span, to);
    default: return load_as<ElementType::F16, uint16_t>(span, to);
  }
}

template <class Formula>
[[gnu::always_inline]] inline void apply(const ElementSpan& span, Block& block) {
  float* const main = span.main;
  float* const first = span.state[0] != nullptr ? span.state[0] : block.absent[0];
  float* const second = span.state[1] != nullptr ? span.state[1] : block.absent[1];
  const kernels::RuleScalars scalars = span.scalars;
  const float* const grad = block.grad;
#pragma GCC ivdep
  for (int64_t i = 0; i < span.count; ++i) {
    kernels::Element e = {main[i], grad[i], {first[i], second[i]}};
    Formula::update(scalars, e);
    main[i] = e.param;
    first[i] = e.state[0];
    if (Formula::kStates == 2) second[i] = e.state[1];
  }
}

template <ElementType kType>
[[gnu::always_inline]] inline void round_as(const ElementSpan& span) {
  auto* const to = static_cast<uint16_t*>(span.model);
#pragma GCC ivdep
  for (int64_t i = 0; i < span.count; ++i) {
    to[i] = rounded_bits<kType>(span.main[i]);
  }
}

[[gnu::always_inline]] inline void update_block(const ElementSpan& span, Block& block) {
  load_grads(span, block.grad);
  for (int i = 0; i < 2; ++i) {
    if (span.state[i] == nullptr) std::memset(block.absent[i], 0, sizeof block.absent[i]);
  }
  switch (span.rule) {
    case kernels::RuleKind::Adam: apply<kernels::AdamFormula>(span, block); break;
    case kernels::RuleKind::FusedAdam: apply<kernels::FusedAdamFormula>(span, block); break;
    case kernels::RuleKind::Sgd: apply<kernels::SgdFormula>(span, block); break;
    case kernels::RuleKind::Lion: apply<kernels::LionFormula>(span, block); break;
    case kernels::RuleKind::Muon: break;
  }
  if (span.model == nullptr) return;
  if (span.model_type == ElementType::BF16) {
    round_as<ElementType::BF16>(span);
  } else {
    round_as<ElementType::F16>(span);
  }
}

template <class T>
T* moved(T* array, int64_t elements, ElementType type) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  if (array == nullptr) return nullptr;
  return reinterpret_cast<Byte*>(array) + elements * kernels::bytes_of(type);
}

[[gnu::always_inline]] inline void update_elements_body(const ElementSpan& span) {
  Block block;
  for (int64_t begin = 0; begin < span.count; begin += kBlock) {
    update_block(span.part(begin, std::min(kBlock, span.count - begin)), block);
  }
}

}  // namespace

ElementSpan ElementSpan::part(int64_t begin, int64_t size) const {
  ElementSpan found = *this;
  found.grad = moved(grad, begin, grad_type);
  found.main = main + begin;
  for (float*& tensor : found.state) tensor = tensor != nullptr ? tensor + begin : nullptr;
  found.model = moved(model, begin, model_type);
  found.count = size;
  return found;
}

CKPT_DISPATCHED(update_elements, (const ElementSpan& span), (span))

}  // namespace optim
