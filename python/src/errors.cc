// ckpt::Error as the exceptions of shardwise._errors.
#include <exception>
#include <system_error>

#include <ckpt/error.h>

#include "module.h"

namespace python {
namespace {

// By ErrorCode.
constexpr const char* kClasses[] = {"InvalidArgumentError", "CorruptError",
                                    "UnsupportedError",     "NotFoundError",
                                    "AlreadyExistsError",   "IoError"};

void raise(const ckpt::Error& error) {
  const ckpt::Where& where = error.where();
  const auto optional = [](const std::string& text) -> nb::object {
    return text.empty() ? nb::none() : nb::object(python::text(text));
  };
  nb::object offset = nb::none();
  if (where.offset_bytes) offset = nb::int_(*where.offset_bytes);
  const nb::object made = nb::module_::import_("shardwise._errors")
                              .attr(kClasses[static_cast<size_t>(error.code())])(
                                  text(error.what()), optional(where.file), offset,
                                  optional(where.key), optional(error.hint()));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const ckpt::Error& error) {
    try {
      raise(error);
    } catch (nb::python_error& failed) {
      failed.restore();
    }
  } catch (const std::system_error& error) {
    PyErr_SetString(PyExc_OSError, error.what());
  }
}

}  // namespace

void add_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace python
