// Which store, and as whom: what the AWS tools take from the environment and from their files.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/text.h"

namespace ckpt {

// The environment; nullopt or empty: not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;

// Never printed.
struct AwsCredentials {
  std::string key_id, secret, session_token;
  std::string origin;  // where they were found, for errors
};

struct AwsSettings {
  AwsCredentials credentials;
  std::string region = "us-east-1";
  std::string endpoint;  // "http://host:port"; empty: Amazon's own
  bool has_bucket_in_host = false;
  std::string ca_file;
  int attempts_max = 10;
};

// Throws NotFound where there are no credentials; Unsupported for a way to get some that is not
// gone: a role, single sign-on, a process, a web identity, instance metadata.
AwsSettings read_aws_settings(const Variables& variables);

// "[section]", "name = value"; names below an indented one as "outer.inner". Throws Corrupt where a
// line is neither.
using Profiles = TextMap<TextMap<std::string>>;
Profiles parse_profiles(std::string_view text, const std::string& file);

}  // namespace ckpt
