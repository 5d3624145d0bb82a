#pragma once

#include <cuda_runtime_api.h>

#include <kernels/element_type.h>

// From types that are known when the program runs to those that kernels are compiled for.
namespace kernels {

// Sets of types: each has fits(types), and is made from them.
template <class... Sets>
struct TypeSets {};

// The sets of several lists, in order.
template <class... Lists>
struct JoinedSets;
template <class... Sets>
struct JoinedSets<TypeSets<Sets...>> {
  using All = TypeSets<Sets...>;
};
template <class... First, class... Second, class... Rest>
struct JoinedSets<TypeSets<First...>, TypeSets<Second...>, Rest...> {
  using All = typename JoinedSets<TypeSets<First..., Second...>, Rest...>::All;
};
template <class... Lists>
using Joined = typename JoinedSets<Lists...>::All;

// Calls visit(set) with the first set that fits; cudaErrorInvalidValue where none does.
template <class Types, class Visit>
cudaError_t with_types(TypeSets<>, const Types&, Visit&&) {
  return cudaErrorInvalidValue;
}
template <class First, class... Rest, class Types, class Visit>
cudaError_t with_types(TypeSets<First, Rest...>, const Types& types, Visit&& visit) {
  if (First::fits(types)) return visit(First{types});
  return with_types(TypeSets<Rest...>(), types, visit);
}

// A set of one: with_types() in with_types() gives all combinations.
template <ElementType kType>
struct OneType {
  static constexpr ElementType kValue = kType;
  ElementType type;
  static bool fits(ElementType other) { return other == kType; }
};

template <ElementType... kTypes>
using AnyOf = TypeSets<OneType<kTypes>...>;

}  // namespace kernels
