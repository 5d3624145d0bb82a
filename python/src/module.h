#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include <ckpt/document.h>
#include <nanobind/nanobind.h>
#include <training/opened_training.h>

// What the sources of the Python module share: shardwise._core, which python/shardwise wraps. It
// holds no algorithm: arguments become one call of a library, values become Python's.
namespace python {

namespace nb = nanobind;

using Opened = std::shared_ptr<const optim::OpenedTraining>;
using Entry = std::shared_ptr<const ckpt::TensorEntry>;

// A tensor that nothing was read of yet, and what it is read from.
struct Tensor {
  Opened checkpoint;
  Entry entry;
};

// Runs `work` without the GIL. On Python's main thread it runs on a thread of its own while signals
// are looked for: KeyboardInterrupt requests a stop and is raised when the work has ended.
void run_interruptibly(const std::function<void(std::stop_token)>& work);

// A value of a pickle as Python's: of classes only those that hold data alone are built
// (OrderedDict, torch.Size, complex); everything else becomes shardwise.Inert. Sharing and cycles
// stay. Nothing is imported or called that the file names. `tensor`: makes Python's of a Tensor.
struct Conversion {
  Opened checkpoint;
  const ckpt::Document& document;
  std::string file;   // to print in errors
  nb::object tensor;  // called with a Tensor
};
nb::object to_python(const ckpt::Value& root, const Conversion& conversion);
// The same where no tensors are: settings of groups, arguments.
nb::object to_python(const ckpt::Value& root);

nb::str text(std::string_view utf8);  // lone surrogates as Python's surrogatepass has them

// What each source adds to the module.
void add_errors(nb::module_& module);
void add_tensors(nb::module_& module);
void add_checkpoint(nb::module_& module);

}  // namespace python
