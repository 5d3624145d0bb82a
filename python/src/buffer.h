#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ckpt/slice.h>
#include <nanobind/nanobind.h>

// Memory of Python's that tensors are read into, and which elements of them.
namespace python {

// A writable, contiguous buffer of bytes, for as long as it is read into.
class Buffer {
 public:
  explicit Buffer(nanobind::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_CONTIG) != 0) throw nanobind::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_ = {};
};

nanobind::tuple tuple_of(const ckpt::Extents& numbers);
// (start, step, count) of each dimension.
ckpt::Slice slice_of(const nanobind::tuple& dims);
// Throws InvalidArgument where the slice leaves the tensor, or a buffer of this size does not fit.
void check_slice(const ckpt::Slice& slice, const ckpt::TensorEntry& entry, uint64_t count_bytes);

}  // namespace python
