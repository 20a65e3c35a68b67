// Names of objects: "s3://BUCKET/KEY", and their form in a request. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.hpp"

namespace simplescale {

/// An object, or all objects whose keys begin with `key` and "/".
struct S3Url {
  std::string bucket;
  std::string key;  // without "/" at its ends; "": the bucket
  /// "s3://BUCKET/KEY"
  std::string text() const;
  /// The object `name` below this one: "KEY/NAME", or "NAME" for a bucket.
  std::string below(const std::string& name) const;
};

/// True if the text begins with "s3://".
bool is_s3_url(std::string_view text);

/// bad_config: not s3://BUCKET or s3://BUCKET/KEY, with what is wrong. A key has no empty segment and
/// no segment "." or "..", which servers and proxies change.
Result<S3Url> parse_s3_url(const std::string& url);

/// The text with every byte but A-Z a-z 0-9 - _ . ~ as %XX, as signatures of AWS version 4 need it.
/// keep_slash: "/" stays.
std::string percent_encoded(std::string_view text, bool keep_slash);

}  // namespace simplescale
