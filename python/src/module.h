#pragma once

#include <functional>
#include <memory>
#include <stop_token>

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

struct Checkpoint {
  Opened opened;
};

// A value of a pickle as Python's: of classes only those that hold data alone are built
// (OrderedDict, torch.Size, complex); everything else becomes shardwise.Inert. Sharing and cycles
// stay. Nothing is imported or called that the file names. Without `tensor` tensors are Inert, too.
using MakeTensor = std::function<nb::object(const ckpt::Value&, const ckpt::TensorView&)>;
nb::object to_python(const ckpt::Value& root, const MakeTensor& tensor = {});

// Lone surrogates as Python's surrogatepass has them, what is no UTF-8 as surrogateescape has it.
nb::str text(std::string_view utf8);

// What each source adds to the module.
void add_errors(nb::module_& module);
void add_tensors(nb::module_& module);
nb::class_<Checkpoint> add_checkpoint(nb::module_& module);
void add_training(nb::module_& module, nb::class_<Checkpoint>& checkpoint);
void add_commands(nb::module_& module);

}  // namespace python
