#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace ckpt {

// One number per dimension; a 0-dim tensor has none. A vector that holds three dimensions without a
// heap allocation, in 32 bytes: a checkpoint has two of them in each of 10^6 chunks.
class Extents {
 public:
  using value_type = uint64_t;
  using size_type = size_t;
  using difference_type = std::ptrdiff_t;
  using reference = uint64_t&;
  using const_reference = const uint64_t&;
  using iterator = uint64_t*;
  using const_iterator = const uint64_t*;

  Extents() noexcept : inline_{} {}
  explicit Extents(size_t count, uint64_t value = 0) : Extents() { resize(count, value); }
  Extents(std::initializer_list<uint64_t> numbers) : Extents(numbers.begin(), numbers.end()) {}
  template <std::input_iterator Iterator>
  Extents(Iterator first, Iterator last) : Extents() {
    for (; first != last; ++first) push_back(static_cast<uint64_t>(*first));
  }
  Extents(const Extents& other) : count_(other.count_) {
    std::copy(other.inline_, other.inline_ + kInlineMax, inline_);
    if (!other.is_on_heap()) return;
    capacity_ = other.capacity_;
    heap_ = new uint64_t[capacity_];
    std::copy(other.begin(), other.end(), heap_);
  }
  Extents(Extents&& other) noexcept { take(other); }
  Extents& operator=(Extents other) noexcept {
    if (is_on_heap()) delete[] heap_;
    take(other);
    return *this;
  }
  ~Extents() {
    if (is_on_heap()) delete[] heap_;
  }

  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  uint64_t* data() { return is_on_heap() ? heap_ : inline_; }
  const uint64_t* data() const { return is_on_heap() ? heap_ : inline_; }
  iterator begin() { return data(); }
  iterator end() { return data() + count_; }
  const_iterator begin() const { return data(); }
  const_iterator end() const { return data() + count_; }
  uint64_t& operator[](size_t dim) { return data()[dim]; }
  uint64_t operator[](size_t dim) const { return data()[dim]; }
  uint64_t& front() { return *begin(); }
  uint64_t front() const { return *begin(); }
  uint64_t& back() { return end()[-1]; }
  uint64_t back() const { return end()[-1]; }

  void push_back(uint64_t number) {
    if (count_ == capacity_) grow(2 * size_t{capacity_});
    data()[count_++] = number;
  }
  void clear() { count_ = 0; }
  void resize(size_t count, uint64_t value = 0) {
    if (count > capacity_) grow(count);
    std::fill(data() + std::min<size_t>(count_, count), data() + count, value);
    count_ = static_cast<uint32_t>(count);
  }
  template <std::input_iterator Iterator>
  void assign(Iterator first, Iterator last) {
    *this = Extents(first, last);
  }
  iterator insert(const_iterator position, uint64_t number) {
    const std::ptrdiff_t index = position - begin();
    push_back(number);
    std::rotate(begin() + index, end() - 1, end());
    return begin() + index;
  }

  friend bool operator==(const Extents& a, const Extents& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend std::strong_ordering operator<=>(const Extents& a, const Extents& b) {
    return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr uint32_t kInlineMax = 3;

  bool is_on_heap() const { return capacity_ > kInlineMax; }

  // Of what lies on the heap, the pointer.
  void take(Extents& other) noexcept {
    std::copy(other.inline_, other.inline_ + kInlineMax, inline_);
    count_ = std::exchange(other.count_, 0);
    capacity_ = std::exchange(other.capacity_, kInlineMax);
  }

  void grow(size_t capacity) {
    auto* numbers = new uint64_t[capacity];
    std::copy(begin(), end(), numbers);
    if (is_on_heap()) delete[] heap_;
    heap_ = numbers;
    capacity_ = static_cast<uint32_t>(capacity);
  }

  union {
    uint64_t inline_[kInlineMax];
    uint64_t* heap_;
  };
  uint32_t count_ = 0;
  uint32_t capacity_ = kInlineMax;
};

}  // namespace ckpt
