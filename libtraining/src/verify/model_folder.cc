// A folder that hides the rank files of optimizers.
#include "verify/model_folder.h"

#include <utility>

namespace optim {
namespace {

class ModelFolder final : public ckpt::Folder {
 public:
  std::vector<std::string> list(const std::filesystem::path& folder) const override {
    std::vector<std::string> names = disk_->list(folder);
    std::erase_if(names, [](const std::string& name) {
      return name.starts_with("layer_wise_optimizer_") || name == "distrib_optim.pt";
    });
    return names;
  }
  Entry stat(const std::filesystem::path& path) const override { return disk_->stat(path); }
  Entry stat_entry(const std::filesystem::path& path) const override {
    return disk_->stat_entry(path);
  }
  std::unique_ptr<ckpt::OpenedFile> open(const std::filesystem::path& folder,
                                         const Name& name) const override {
    return disk_->open(folder, name);
  }
  void check_inside(const std::filesystem::path& folder, const std::string& name) const override {
    disk_->check_inside(folder, name);
  }
  std::filesystem::path resolved(const std::filesystem::path& path) const override {
    return disk_->resolved(path);
  }

 private:
  std::shared_ptr<const ckpt::Folder> disk_ = ckpt::local_folder();
};

}  // namespace

std::shared_ptr<const ckpt::Folder> model_folder() { return std::make_shared<ModelFolder>(); }

}  // namespace optim
