#include "runtime/object_store/given_credentials.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <thread>
#include <vector>

#include "runtime/base/files.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/printable.hpp"
#include "runtime/base/words.hpp"
#include "runtime/object_store/http_client.hpp"
#include "runtime/object_store/s3_url.hpp"

namespace simplescale {

namespace {

constexpr size_t kAnswerBytesMax = 64 << 10;
constexpr size_t kTokenBytesMax = 64 << 10;

using Failure = HttpAnswer::Failure;

Status wrong(const std::string& what, const std::string& why, Code code = Code::bad_config) {
  return {code, "object store: " + what + ": " + why};
}

bool may_pass(const HttpAnswer& answer) {
  return answer.failure == Failure::network ||
         (answer.failure == Failure::none && (answer.status == 429 || answer.status >= 500));
}

/// Sends an unsigned request at most `tries` times. The body of an answer may be a secret.
HttpAnswer ask(const HttpRequest& request, const S3Settings& settings, int64_t timeout_ms,
               int tries) {
  HttpClient client;
  const HttpLimits limits{.connect_timeout_ms = timeout_ms, .request_timeout_ms = timeout_ms};
  for (int tried = 1;; ++tried) {
    HttpAnswer answer = client.send(request, settings, limits);
    if (tried >= tries || !may_pass(answer)) return answer;
    std::this_thread::sleep_for(std::chrono::milliseconds(200) * (1 << (tried - 1)));
  }
}

/// The error of an answer that is not 200.
Status error_of(const std::string& what, const HttpAnswer& answer) {
  if (answer.failure == Failure::certificate) return wrong(what, answer.failure_text);
  if (answer.failure != Failure::none) return wrong(what, answer.failure_text, Code::io);
  return wrong(what, "HTTP " + std::to_string(answer.status),
               may_pass(answer) ? Code::io : Code::bad_config);
}

/// A file's text without the blanks around it.
Result<std::string> token_in(const std::string& file, const char* variable) {
  const auto text = read_text(file);
  if (!text.ok()) return wrong(variable, text.status().message());
  std::string token = trimmed(*text);
  const bool plain =
      std::ranges::none_of(token, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (token.empty() || token.size() > kTokenBytesMax || !plain)
    return wrong(variable, file + " holds no token");
  return token;
}

/// Where requests without TLS may go: nowhere beyond this host, or the addresses of AWS's agents.
bool is_own_host(const std::string& url) {
  const std::string rest = url.substr(std::string("http://").size());
  const std::string place = rest.substr(0, rest.find_first_of("/?#"));
  if (place.find('@') != std::string::npos) return false;
  const std::string host = place.starts_with('[') ? place.substr(0, place.find(']') + 1)
                                                  : place.substr(0, place.find(':'));
  static const std::vector<std::string> own = {"localhost",     "127.0.0.1",      "[::1]",
                                               "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
  return std::ranges::find(own, host) != own.end();
}

/// A whole number of the environment, or `otherwise`.
int64_t number_of(const Environment& environment, const char* variable, int64_t otherwise,
                  int64_t most) {
  const std::string text = environment(variable);
  const int64_t value = text.empty() ? otherwise : std::strtoll(text.c_str(), nullptr, 10);
  return std::clamp<int64_t>(value, 1, most);
}

}  // namespace

int64_t unix_time_of(const std::string& text) {
  std::tm t{};
  int hours = 0, minutes = 0;
  char zone[2] = "", rest[2] = "";
  std::string whole = text.substr(0, text.find('.'));
  if (whole.size() < text.size())  // parts of a second
    if (const size_t end = text.find_first_not_of("0123456789", whole.size() + 1);
        end != std::string::npos)
      whole += text.substr(end);
  const int found =
      std::sscanf(whole.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%1[Z+-]%2d:%2d%1s", &t.tm_year, &t.tm_mon,
                  &t.tm_mday, &t.tm_hour, &t.tm_min, &t.tm_sec, zone, &hours, &minutes, rest);
  if (zone[0] == 'Z' ? found != 7 || !whole.ends_with('Z') : found != 9) return 0;
  t.tm_year -= 1900;
  t.tm_mon -= 1;
  const int64_t offset = 3600 * hours + 60 * minutes;
  return std::max<int64_t>(0, int64_t{::timegm(&t)} - (zone[0] == '-' ? -offset : offset));
}

Result<S3Credentials> credentials_of_json(const std::string& text, const char* token) {
  const nlohmann::json root = parse_json(text);
  S3Credentials found{text_of(root, "AccessKeyId"), text_of(root, "SecretAccessKey"),
                      text_of(root, token), unix_time_of(text_of(root, "Expiration"))};
  if (found.access_key_id.empty() || found.secret_access_key.empty())
    return Status(Code::bad_config, "no JSON with AccessKeyId and SecretAccessKey");
  return found;
}

Result<S3Credentials> web_identity_credentials(const WebIdentity& identity,
                                               const S3Settings& settings) {
  constexpr const char* variable = "AWS_WEB_IDENTITY_TOKEN_FILE";
  if (identity.role_arn.empty())
    return wrong(variable, "the role is not set; set AWS_ROLE_ARN, too");
  SS_ASSIGN(const std::string token, token_in(identity.token_file, variable));
  const std::string china = settings.region.starts_with("cn-") ? ".cn" : "";
  const std::string endpoint = identity.endpoint.empty()
                                   ? "https://sts." + settings.region + ".amazonaws.com" + china
                                   : identity.endpoint;
  const std::string session = identity.session_name.empty() ? "simplescale" : identity.session_name;
  const std::string form = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=" +
                           percent_encoded(identity.role_arn, false) +
                           "&RoleSessionName=" + percent_encoded(session, false) +
                           "&WebIdentityToken=" + percent_encoded(token, false);
  const HttpAnswer answer = ask({.method = "POST",
                                 .url = endpoint + "/",
                                 .headers = {"Content-Type: application/x-www-form-urlencoded"},
                                 .body = form,
                                 .body_bytes_max = kAnswerBytesMax,
                                 .is_signed = false},
                                settings, 5'000, 3);
  const std::string what = "the role of AWS_ROLE_ARN, from " + endpoint;
  pugi::xml_document document;
  document.load_buffer(answer.body.data(), answer.body.size());
  if (answer.failure != Failure::none || answer.status != 200) {
    const Status error = error_of(what, answer);
    // STS says "InvalidIdentityToken", "ExpiredTokenException", "AccessDenied", never a token.
    const std::string code = document.child("ErrorResponse").child("Error").child_value("Code");
    if (code.empty()) return error;
    return Status(error.code(), error.message() + " " + printable(code.substr(0, 100)));
  }
  const pugi::xml_node given = document.child("AssumeRoleWithWebIdentityResponse")
                                   .child("AssumeRoleWithWebIdentityResult")
                                   .child("Credentials");
  S3Credentials found{given.child_value("AccessKeyId"), given.child_value("SecretAccessKey"),
                      given.child_value("SessionToken"),
                      unix_time_of(given.child_value("Expiration"))};
  if (found.access_key_id.empty() || found.secret_access_key.empty())
    return wrong(what, "the answer has no credentials", Code::io);
  return found;
}

bool has_container_credentials(const Environment& environment) {
  return !environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").empty() ||
         !environment("AWS_CONTAINER_CREDENTIALS_FULL_URI").empty();
}

Result<S3Credentials> container_credentials(const Environment& environment,
                                            const S3Settings& settings) {
  const std::string relative = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string url = relative.empty() ? environment("AWS_CONTAINER_CREDENTIALS_FULL_URI")
                                           : "http://169.254.170.2" + relative;
  const std::string what = relative.empty() ? "AWS_CONTAINER_CREDENTIALS_FULL_URI"
                                            : "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
  const bool plain = url.starts_with("http://");
  if ((!plain && !url.starts_with("https://")) || (plain && !is_own_host(url)))
    return wrong(what, "it must be https://, or http:// to this host");
  HttpRequest request{.method = "GET",
                      .url = url,
                      .body_bytes_max = kAnswerBytesMax,
                      .is_signed = false,
                      .direct = plain};
  constexpr const char* file = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
  std::string token = trimmed(environment("AWS_CONTAINER_AUTHORIZATION_TOKEN"));
  if (!environment(file).empty()) {
    SS_ASSIGN(token, token_in(environment(file), file));
  }
  if (token.find_first_of("\r\n") != std::string::npos)
    return wrong("AWS_CONTAINER_AUTHORIZATION_TOKEN", "it has more than one line");
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  const HttpAnswer answer = ask(request, settings, 2'000, 3);
  if (answer.failure != Failure::none || answer.status != 200) return error_of(what, answer);
  auto found = credentials_of_json(answer.body, "Token");
  return found.ok() ? std::move(found) : wrong(what, "its answer is " + found.status().message());
}

Result<S3Credentials> instance_credentials(const Environment& environment,
                                           const std::string& endpoint) {
  const auto nothing = [] { return Status(Code::not_found, "no instance's credentials"); };
  std::string disabled = environment("AWS_EC2_METADATA_DISABLED");
  std::ranges::transform(disabled, disabled.begin(),
                         [](unsigned char c) { return std::tolower(c); });
  if (disabled == "true") return nothing();
  std::string base = endpoint;
  if (base.empty())
    base = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE") == "ipv6"
               ? "http://[fd00:ec2::254]"
               : "http://169.254.169.254";
  while (base.ends_with('/')) base.pop_back();
  const std::string what = "the instance's metadata service " + base;
  const int64_t timeout_ms = 1'000 * number_of(environment, "AWS_METADATA_SERVICE_TIMEOUT", 1, 60);
  const auto tries =
      static_cast<int>(number_of(environment, "AWS_METADATA_SERVICE_NUM_ATTEMPTS", 1, 10));
  const auto get = [&](const std::string& method, const std::string& path,
                       const std::string& header) {
    return ask({.method = method,
                .url = base + "/latest/" + path,
                .headers = {header},
                .body_bytes_max = kAnswerBytesMax,
                .is_signed = false,
                .direct = true},
               {}, timeout_ms, tries);
  };
  const HttpAnswer session = get("PUT", "api/token", "X-aws-ec2-metadata-token-ttl-seconds: 21600");
  // Most machines are no instance: nothing answers there, or something else does.
  if (session.failure != Failure::none || session.status == 404 || session.status == 405)
    return nothing();
  if (session.status != 200) return error_of(what, session);
  const std::string token = trimmed(session.body);
  if (token.empty() || token.find_first_of("\r\n") != std::string::npos) return nothing();
  const std::string header = "X-aws-ec2-metadata-token: " + token;
  const std::string path = "meta-data/iam/security-credentials/";
  const HttpAnswer roles = get("GET", path, header);
  if (roles.failure == Failure::none && roles.status == 404) return nothing();  // it has no role
  if (roles.failure != Failure::none || roles.status != 200) return error_of(what, roles);
  const std::string role = trimmed(roles.body.substr(0, roles.body.find('\n')));
  if (role.empty()) return nothing();
  const HttpAnswer answer = get("GET", path + percent_encoded(role, false), header);
  if (answer.failure != Failure::none || answer.status != 200) return error_of(what, answer);
  auto found = credentials_of_json(answer.body, "Token");
  return found.ok() ? std::move(found)
                    : wrong(what, "its answer is " + found.status().message(), Code::io);
}

}  // namespace simplescale
