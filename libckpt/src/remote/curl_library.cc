#include "remote/curl_library.h"

#include <string>

#include <dlfcn.h>

#include <ckpt/error.h>

namespace ckpt::curl {
namespace {

constexpr long kAll = 3;  // CURL_GLOBAL_ALL
constexpr const char* kNames[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"};

void* open_library() {
  for (const char* name : kNames) {
    if (void* const opened = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return opened;
  }
  throw Error(ErrorCode::Unsupported, {}, "addresses are read with libcurl, which is not installed",
              "install it (Debian: libcurl4), or copy the checkpoint to this machine first");
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return;
  throw Error(ErrorCode::Unsupported, {}, std::string("this system's libcurl has no ") + name);
}

Library load() {
  void* const opened = open_library();
  Library library = {};
  find(opened, "curl_global_init", library.global_init);
  find(opened, "curl_easy_init", library.make);
  find(opened, "curl_easy_setopt", library.set);
  find(opened, "curl_easy_perform", library.perform);
  find(opened, "curl_easy_getinfo", library.info);
  find(opened, "curl_easy_reset", library.reset);
  find(opened, "curl_easy_cleanup", library.free);
  find(opened, "curl_slist_append", library.append);
  find(opened, "curl_slist_free_all", library.free_texts);
  find(opened, "curl_easy_strerror", library.error_text);
  if (library.global_init(kAll) != Ok) {
    throw Error(ErrorCode::IoFailure, {}, "libcurl cannot be started");
  }
  return library;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace ckpt::curl
