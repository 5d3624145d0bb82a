#include "model/element.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <ostream>
#include <string>

using ckpt::DType;

namespace {

struct ElementRow {
  DType dtype;
  uint64_t bits;
  const char* text;
};
std::ostream& operator<<(std::ostream& out, const ElementRow& row) {
  return out << name(row.dtype) << " 0x" << std::hex << row.bits;
}

// What torch 2.11 shows for these bits (tensor.view(dtype).item()), digits shortened to the type.
const ElementRow kRows[] = {
    {DType::Float32, 0x3DCCCCCD, "0.1"},
    {DType::Float64, 0x3FB999999999999A, "0.1"},
    {DType::Float16, 0x3C00, "1"},
    {DType::Float16, 0x7BFF, "65504"},
    {DType::Float16, 0x0001, "5.9604645e-08"},
    {DType::Float16, 0xFC00, "-inf"},
    {DType::Float16, 0x7E00, "nan"},
    {DType::BFloat16, 0x3F80, "1"},
    {DType::BFloat16, 0x7F7F, "3.3895314e+38"},
    {DType::BFloat16, 0x8000, "-0"},
    {DType::Float8E4M3FN, 0x7E, "448"},
    {DType::Float8E4M3FN, 0x7F, "nan"},
    {DType::Float8E4M3FN, 0x01, "0.001953125"},
    {DType::Float8E4M3FN, 0xB8, "-1"},
    {DType::Float8E4M3FNUZ, 0x7F, "240"},
    {DType::Float8E4M3FNUZ, 0x80, "nan"},
    {DType::Float8E4M3FNUZ, 0x40, "1"},
    {DType::Float8E5M2, 0x7B, "57344"},
    {DType::Float8E5M2, 0x7C, "inf"},
    {DType::Float8E5M2, 0x01, "1.5258789e-05"},
    {DType::Float8E5M2FNUZ, 0x7F, "57344"},
    {DType::Float8E5M2FNUZ, 0x80, "nan"},
    {DType::Float8E5M2FNUZ, 0x40, "1"},
    {DType::Float8E8M0FNU, 127, "1"},
    {DType::Float8E8M0FNU, 128, "2"},
    {DType::Float8E8M0FNU, 0xFF, "nan"},
    {DType::UInt8, 255, "255"},
    {DType::Int8, 255, "-1"},
    {DType::Int16, 0x8000, "-32768"},
    {DType::UInt16, 0x8000, "32768"},
    {DType::Int32, 0xFFFFFFFF, "-1"},
    {DType::UInt32, 0xFFFFFFFF, "4294967295"},
    {DType::Int64, UINT64_MAX, "-1"},
    {DType::UInt64, UINT64_MAX, "18446744073709551615"},
    {DType::Bool, 1, "True"},
    {DType::Bool, 0, "False"},
    {DType::Complex32, 0xBC003C00, "(1-1j)"},
    {DType::Complex64, 0x3F80000000000000, "(0+1j)"},
};

template <class Element, class Bits>
bool grows_by_one_per_value(Bits first, Bits last) {
  for (Bits bits = first; bits < last; ++bits) {
    const auto next = static_cast<Bits>(bits + 1);
    if (Element::order(next) - Element::order(bits) != 1) return false;
    if (!(Element::value(bits) < Element::value(next))) return false;
  }
  return true;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(element)

BOOST_DATA_TEST_CASE(bits_are_shown_as_torch_shows_them, kRows) {
  BOOST_TEST(ckpt::element_text(sample.dtype, reinterpret_cast<const std::byte*>(&sample.bits)) ==
             sample.text);
}

BOOST_AUTO_TEST_CASE(order_counts_representable_values) {
  BOOST_TEST((grows_by_one_per_value<ckpt::IeeeElement<uint16_t, 5>, uint16_t>(0, 0x7C00)));
  BOOST_TEST((grows_by_one_per_value<ckpt::BFloat16Element, uint16_t>(0, 0x7F80)));
  BOOST_TEST((grows_by_one_per_value<ckpt::FiniteFloat8<4, false>, uint8_t>(0, 0x7E)));
  BOOST_TEST((grows_by_one_per_value<ckpt::FiniteFloat8<5, true>, uint8_t>(0, 0x7F)));
  BOOST_TEST((grows_by_one_per_value<ckpt::PowerOfTwoElement, uint8_t>(0, 0xFE)));
}

BOOST_AUTO_TEST_CASE(both_zeros_have_one_order) {
  using Half = ckpt::IeeeElement<uint16_t, 5>;
  BOOST_TEST(Half::order(0x0000) == Half::order(0x8000));
  BOOST_TEST(Half::order(0x8001) == -1);
}

BOOST_AUTO_TEST_SUITE_END()
