#include "tools/http/access.hpp"

#include <arpa/inet.h>
#include <sys/random.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/base/json_members.hpp"
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

/// A method, or the name of a header.
bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || (c != 0 && std::strchr("!#$%&'*+-.^_`|~", c) != nullptr);
  });
}

bool is_length(std::string_view text) {
  constexpr size_t kDigitsMax = 18;
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return !text.empty() && text.size() <= kDigitsMax &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
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

std::string wrong_head(std::string_view request) {
  std::string_view rest = request.substr(0, request.find("\r\n\r\n"));
  const auto next_line = [&rest] {
    const size_t end = rest.find("\r\n");
    const std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 2);
    return line;
  };
  const auto has_control = [](std::string_view text) {
    return std::ranges::any_of(
        text, [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; });
  };
  const std::string_view first = next_line();
  const size_t target = first.find(' ') + 1, version = first.rfind(' ');
  if (target == 0 || version < target || !is_name(first.substr(0, target - 1)) ||
      first[target] != '/' ||
      first.substr(target, version - target).find(' ') != std::string::npos ||
      (first.substr(version) != " HTTP/1.1" && first.substr(version) != " HTTP/1.0") ||
      has_control(first))
    return "the first line of the request";
  std::map<std::string, int> seen;
  while (!rest.empty()) {
    const std::string_view line = next_line();
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !is_name(line.substr(0, colon)) || has_control(line))
      return "a header of the request";
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool once = name == "host" || name == "content-length" || name == "authorization";
    if (name == "transfer-encoding" || (once && ++seen[name] > 1))
      return "the header " + name + " of the request";
    if (name == "content-length" && !is_length(line.substr(colon + 1)))
      return "the header content-length of the request";
  }
  return "";
}

Result<std::string> page_token(const RunFolder& run, const std::string& host, int port) {
  if (check_own(run.http()).ok()) {
    const auto page = json_of(read_text(run.http()));
    if (member_of(page, "host") == host && member_of(page, "port") == port)
      if (std::string token = text_of(page, "token"); is_token(token)) return token;
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
