// The words of libckpt in which this library speaks of checkpoints, with the headers that have
// them.
#pragma once

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/error.h>
#include <ckpt/value_tree.h>

namespace optim {

using ckpt::Box;
using ckpt::Chunk;
using ckpt::Document;
using ckpt::DType;
using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Extents;
using ckpt::Kind;
using ckpt::NodeId;
using ckpt::TensorEntry;
using ckpt::Value;
using ckpt::ValueTree;

}  // namespace optim
