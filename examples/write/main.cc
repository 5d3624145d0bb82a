// usage: example SOURCE DESTINATION KEY FACTOR. Writes a copy of a checkpoint as one safetensors
// file in which the float32 tensor KEY is FACTOR times what it was: its values come from memory,
// all others go from file to file.
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/error.h>
#include <ckpt/execute.h>
#include <ckpt/plain_target.h>
#include <ckpt/plan.h>
#include <ckpt/staging.h>

namespace {

// The record of a target that is to hold the tensor.
ckpt::TargetRecord& find(ckpt::Target& target, const std::string& key) {
  for (ckpt::TargetFile& file : target.files) {
    for (ckpt::TargetArchive& archive : file.archives) {
      for (ckpt::TargetRecord& record : archive.records) {
        const auto* source = std::get_if<ckpt::TensorSource>(&record.source);
        if (source != nullptr && source->tensor->key == key) return record;
      }
    }
  }
  throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = {}, .key = key}, "no such tensor");
}

void write_scaled(const ckpt::Checkpoint& source, const std::string& destination,
                  const std::string& key, float factor) {
  ckpt::Target target = ckpt::make_target(source, {.format = ckpt::Format::Safetensors});
  ckpt::TargetRecord& record = find(target, key);
  std::vector<float> elements =
      source.read_as<float>(*std::get<ckpt::TensorSource>(record.source).tensor);
  for (float& element : elements) element *= factor;
  const auto bytes = std::as_bytes(std::span(elements));
  record.source = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());

  const ckpt::Plan plan = ckpt::make_plan(target);  // what goes where; nothing is written yet
  ckpt::Staging staging = ckpt::Staging::create(destination, {.single_file = true});
  ckpt::execute(target, plan, source, staging);
  staging.commit();  // before this the destination is absent, afterwards it is whole
  for (const ckpt::NotCarried& lost : target.not_carried) {
    std::printf("not carried: %s: %s\n", ckpt::escaped(lost.what).c_str(), lost.reason.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s SOURCE DESTINATION KEY FACTOR\n", argv[0]);
    return 2;
  }
  try {
    const ckpt::Checkpoint source = ckpt::Checkpoint::open(argv[1]);
    write_scaled(source, argv[2], argv[3], std::strtof(argv[4], nullptr));
    const ckpt::Checkpoint written = ckpt::Checkpoint::open(argv[2]);
    std::printf("wrote %zu tensors\n", written.catalog().tensors.size());
  } catch (const ckpt::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
