#include "runtime/object_store/s3_url.hpp"

#include <algorithm>
#include <cctype>

namespace simplescale {

namespace {

constexpr std::string_view kScheme = "s3://";
constexpr size_t kKeyBytesMax = 1024;

bool is_unreserved(unsigned char c) {
  return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '~';
}

bool is_bucket(const std::string& name) {
  return name.size() >= 3 && name.size() <= 63 &&
         std::isalnum(static_cast<unsigned char>(name[0])) &&
         std::ranges::all_of(name, [](unsigned char c) { return is_unreserved(c) && c != '~'; }) &&
         name.find("..") == std::string::npos;
}

/// What is wrong with a key, or "".
std::string wrong_key(const std::string& key) {
  if (key.size() > kKeyBytesMax) return "its key has more than 1024 bytes";
  if (std::ranges::any_of(key, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    return "its key has a control character";
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('/', begin), key.size());
    const std::string segment = key.substr(begin, end - begin);
    if (segment.empty() && !key.empty()) return "its key has an empty segment";
    if (segment == "." || segment == "..") return "its key has the segment \"" + segment + "\"";
    begin = end + 1;
  }
  return "";
}

}  // namespace

std::string S3Url::text() const {
  return std::string(kScheme) + bucket + (key.empty() ? "" : "/" + key);
}

std::string S3Url::below(const std::string& name) const {
  return key.empty() ? name : key + "/" + name;
}

bool is_s3_url(std::string_view text) {
  return text.starts_with(kScheme);
}

Result<S3Url> parse_s3_url(const std::string& url) {
  auto wrong = [&](const std::string& what) {
    return Status(Code::bad_config, "\"" + url + "\": " + what + "; write s3://BUCKET/KEY");
  };
  if (!is_s3_url(url)) return wrong("it does not begin with s3://");
  const std::string rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  if (rest.substr(0, slash).find('@') != std::string::npos)  // and do not show it
    return Status(Code::bad_config,
                  "an s3:// URL holds no credentials; set AWS_ACCESS_KEY_ID and "
                  "AWS_SECRET_ACCESS_KEY");
  S3Url out{rest.substr(0, slash), slash < rest.size() ? rest.substr(slash + 1) : ""};
  if (out.key.ends_with('/')) out.key.pop_back();
  if (!is_bucket(out.bucket)) return wrong("\"" + out.bucket + "\" is no name of a bucket");
  if (const std::string what = wrong_key(out.key); !what.empty()) return wrong(what);
  return out;
}

std::string percent_encoded(std::string_view text, bool keep_slash) {
  constexpr char digits[] = "0123456789ABCDEF";
  std::string out;
  for (const unsigned char c : text) {
    if (is_unreserved(c) || (keep_slash && c == '/')) {
      out += static_cast<char>(c);
    } else {
      out += '%';
      out += digits[c >> 4];
      out += digits[c & 15];
    }
  }
  return out;
}

}  // namespace simplescale
