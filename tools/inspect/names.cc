#include "inspect/names.h"

#include <ckpt/error.h>
#include <optim/logical_inventory.h>

namespace tools::inspect {
namespace {

NamedPair canonical_pair(const ckpt::Checkpoint& a, const ckpt::Checkpoint& b) {
  return {optim::logical_inventory(a), optim::logical_inventory(b), "canonical"};
}

NamedPair stored_pair(const ckpt::Checkpoint& a, const ckpt::Checkpoint& b) {
  return {native_inventory(a), native_inventory(b), "stored"};
}

}  // namespace

NamedPair names_in_common(const ckpt::Checkpoint& a, const ckpt::Checkpoint& b, Console& console) {
  const bool is_one_format = a.catalog().format == b.catalog().format;
  if (!is_one_format) return canonical_pair(a, b);
  if (!optim::is_layer_wise(a) || !optim::is_layer_wise(b)) return stored_pair(a, b);
  try {
    return canonical_pair(a, b);
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported) throw;
    console.warn(std::string("compared under stored names: ") + error.what());
    return stored_pair(a, b);
  }
}

}  // namespace tools::inspect
