#include "runtime/http/access.hpp"

#include <arpa/inet.h>
#include <sys/random.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "runtime/base/parse_json.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/run/run_state.hpp"

namespace simplescale {

namespace {

constexpr size_t kTokenDigits = 32;

/// The name in "name:port" or "[address]:port", in lower case.
std::string name_in(const std::string& header) {
  const size_t end = header.starts_with("[") ? header.find(']') : header.find(':');
  std::string name = header.substr(0, end);
  if (name.starts_with("[")) name = name.substr(1);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

bool is_address(const std::string& name) {
  unsigned char address[sizeof(in6_addr)];
  return inet_pton(AF_INET, name.c_str(), address) == 1 ||
         inet_pton(AF_INET6, name.c_str(), address) == 1;
}

bool same(const std::string& given, const std::string& wanted) {
  unsigned char differs = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < wanted.size(); ++i)
    differs |= static_cast<unsigned char>(wanted[i] ^ (i < given.size() ? given[i] : '\0'));
  return differs == 0;
}

bool is_token(const std::string& text) {
  return text.size() == kTokenDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

bool allowed_host(const std::string& header, const std::string& bound, const std::string& machine) {
  const std::string name = name_in(header);
  return !name.empty() && (is_address(name) || name == "localhost" || name == name_in(bound) ||
                           name == name_in(machine));
}

bool has_token(const std::string& authorization, const std::string& parameter,
               const std::string& token) {
  if (token.empty()) return false;
  const bool in_header = same(authorization, "Bearer " + token);
  return same(parameter, token) || in_header;
}

Result<std::string> page_token(const RunFolder& run, const std::string& host) {
  if (check_own(run.http()).ok()) {
    const auto text = read_text(run.http());
    const auto page = text.ok() ? parse_json(*text) : nlohmann::json();
    const auto has = [&](const char* key, const std::string& value) {
      return page.contains(key) && page[key] == value;
    };
    if (page.is_object() && has("host", host) && has("instance", instance_of(run)) &&
        page.contains("token") && page["token"].is_string())
      if (std::string token = page["token"]; is_token(token)) return token;
  }
  return new_page_token();
}

Result<std::string> new_page_token() {
  unsigned char random[kTokenDigits / 2];
  if (getrandom(random, sizeof random, 0) != static_cast<ssize_t>(sizeof random))
    return system_error("cannot make", "a token for the page", errno);
  std::string token;
  for (const unsigned char byte : random) {
    token += "0123456789abcdef"[byte >> 4];
    token += "0123456789abcdef"[byte & 15];
  }
  return token;
}

}  // namespace simplescale
