// What a result may lack: what is listed by its key, and not what is merely called the same.
#include <ckpt/convert.h>
#include <ckpt/write_target.h>

#include <boost/test/unit_test.hpp>
#include <stdexcept>

#include "support/random_tensors.h"

using ckpt::Inventory;
using ckpt::NotCarried;

namespace {

void add_object(Inventory& inventory, const std::string& key) {
  auto document = std::make_shared<ckpt::Document>();
  document->tree.set_root(document->tree.dict());
  const ckpt::NodeId root = document->tree.root().id();
  inventory.objects.push_back({"", key, std::move(document), root, false});
}

void add_tensor(Inventory& inventory, const std::string& key) {
  inventory.tensors.push_back({"", key, ckpt::DType::Float32, {0}, {}});
}

// Of a source with that object and that tensor, the result lacks both.
void require_empty_result(const std::string& key, const std::vector<NotCarried>& not_carried) {
  Inventory wanted, found;
  add_object(wanted, key);
  add_tensor(wanted, "tensor " + key);
  const test::MemoryPayloads none;
  ckpt::require_same_content({wanted, none}, {found, none}, {not_carried, false, {}});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(check_result)

BOOST_AUTO_TEST_CASE(what_is_listed_as_missing_may_be_missing) {
  const std::vector<NotCarried> listed{{"/~1", "", "/"}, {"any words", "", "tensor /"}};
  BOOST_CHECK_NO_THROW(require_empty_result("/", listed));
}

BOOST_AUTO_TEST_CASE(a_note_called_as_a_key_does_not_excuse_it) {
  for (const std::string key : {"/a", "key /a", "storage of a", "attributes of a"}) {
    const NotCarried tensor{"tensor " + key, "", "tensor " + key};
    const NotCarried part{key, "becomes a dict"};
    BOOST_CHECK_THROW(require_empty_result(key, {tensor, part}), std::logic_error);
    BOOST_CHECK_THROW(require_empty_result(key, {{key, "", "another"}, tensor}), std::logic_error);
    BOOST_CHECK_THROW(require_empty_result(key, {{key, "", key}, {"tensor " + key, ""}}),
                      std::logic_error);
  }
}

BOOST_AUTO_TEST_SUITE_END()
