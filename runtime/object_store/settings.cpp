#include "runtime/object_store/settings.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/parse_json.hpp"
#include "runtime/base/run_command.hpp"
#include "runtime/base/words.hpp"
#include "runtime/object_store/given_credentials.hpp"

namespace simplescale {

namespace {

constexpr size_t kLineBytesMax = 16 << 10;

using Profile = std::map<std::string, std::string>;

/// The keys of one section of an INI file; empty if there is no such file or section. Nested keys
/// (indented lines below "s3 =") are left out.
Profile read_profile(const std::string& file, const std::string& section) {
  Profile out;
  std::ifstream in(file);
  bool inside = false;
  for (std::string line; std::getline(in, line) && line.size() <= kLineBytesMax;) {
    if (line.empty() || line[0] == '#' || line[0] == ';' || line[0] == ' ' || line[0] == '\t')
      continue;
    if (const std::string text = trimmed(line); text.starts_with('[')) {
      inside = text.ends_with(']') && trimmed(text.substr(1, text.size() - 2)) == section;
      continue;
    }
    const size_t equals = line.find('=');
    if (inside && equals != std::string::npos)
      out[trimmed(line.substr(0, equals))] = trimmed(line.substr(equals + 1));
  }
  return out;
}

/// What the environment and the profile's two sections say.
struct Sources {
  const Environment& environment;
  std::string profile, credentials_file, config_file;
  Profile credentials, config;

  explicit Sources(const Environment& from) : environment(from) {
    const std::string home = environment("HOME") + "/.aws/";
    profile = environment("AWS_PROFILE");
    if (profile.empty()) profile = "default";
    credentials_file = environment("AWS_SHARED_CREDENTIALS_FILE");
    if (credentials_file.empty()) credentials_file = home + "credentials";
    config_file = environment("AWS_CONFIG_FILE");
    if (config_file.empty()) config_file = home + "config";
    credentials = read_profile(credentials_file, profile);
    config = read_profile(config_file, profile == "default" ? profile : "profile " + profile);
  }

  /// The first that is set of the variables, then of the config's key.
  std::string get(std::initializer_list<const char*> variables, const char* key) const {
    for (const char* variable : variables)
      if (std::string value = environment(variable); !value.empty()) return value;
    const auto found = config.find(key);
    return found == config.end() ? "" : found->second;
  }
};

Status wrong(const std::string& what) {
  return {Code::bad_config, "object store: " + what};
}

S3Credentials of_profile(const Profile& profile) {
  auto get = [&](const char* key) {
    const auto found = profile.find(key);
    return found == profile.end() ? "" : found->second;
  };
  return {get("aws_access_key_id"), get("aws_secret_access_key"), get("aws_session_token")};
}

/// The words of a command line, as a shell splits it: blanks within quotes belong to a word.
std::vector<std::string> words_of(const std::string& command) {
  std::vector<std::string> words;
  bool inside = false;  // a word
  char quote = 0;
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (quote == 0 && (c == ' ' || c == '\t')) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (c == quote)
      quote = 0;
    else if (quote == 0 && (c == '"' || c == '\''))
      quote = c;
    else if (c == '\\' && quote != '\'' && i + 1 < command.size())
      words.back() += command[++i];
    else
      words.back() += c;
  }
  return words;
}

/// What the program of credential_process prints. Its output is a secret: no message has a part of
/// it.
Result<S3Credentials> ask_program(const std::string& command, const std::string& where) {
  constexpr int64_t kTimeoutMs = 30'000;
  const std::string what = "credential_process in " + where;
  const std::vector<std::string> words = words_of(command);
  if (words.empty()) return wrong(what + " is empty");
  const auto done = run_command(words, kTimeoutMs,
                                {.with_stderr = false, .bytes_max = 64 << 10, .own_group = true});
  if (!done.ok()) return wrong(what + ": " + done.status().message());
  if (done->code != 0)
    return wrong(what + ": " + words.front() + " ended with exit code " +
                 std::to_string(done->code) +
                 "; run it by hand to see why. In processes of a run it has "
                 "the variables that docs/security.md names, and those of " +
                 kPassVariable);
  const nlohmann::json root = parse_json(done->output);
  auto found = credentials_of_json(done->output, "SessionToken");
  if (!found.ok() || root.value("Version", nlohmann::json()) != 1)
    return wrong(what + ": " + words.front() +
                 " did not print JSON with Version 1, AccessKeyId and SecretAccessKey");
  return found;
}

/// What is wrong with an endpoint's URL, or "".
std::string wrong_endpoint(const std::string& url) {
  const size_t begin = url.starts_with("https://") ? 8 : url.starts_with("http://") ? 7 : 0;
  if (begin == 0) return "it does not begin with https:// or http://";
  const std::string rest = url.substr(begin);
  if (rest.empty()) return "it has no host";
  if (rest.find('@') != std::string::npos) return "it must hold no user name and no password";
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string("-._~:/[]").find(static_cast<char>(c)) != std::string::npos;
  };
  return std::ranges::all_of(rest, allowed) ? "" : "it is no plain URL";
}

/// A service's URL without "/" at its end; "": the default.
Result<std::string> endpoint_of(const Sources& from, std::initializer_list<const char*> variables,
                                const char* key) {
  std::string url = from.get(variables, key);
  while (url.ends_with('/')) url.pop_back();
  const std::string what = url.empty() ? "" : wrong_endpoint(url);
  if (!what.empty())
    return wrong(std::string("the endpoint's URL (") + *variables.begin() + ") is wrong: " + what);
  return url;
}

/// Nothing (no access key) if the environment and the profile name no web identity.
Result<S3Credentials> of_web_identity(const Sources& from, const S3Settings& settings) {
  WebIdentity identity;
  identity.token_file = from.get({"AWS_WEB_IDENTITY_TOKEN_FILE"}, "web_identity_token_file");
  if (identity.token_file.empty()) return S3Credentials();
  identity.role_arn = from.get({"AWS_ROLE_ARN"}, "role_arn");
  identity.session_name = from.get({"AWS_ROLE_SESSION_NAME"}, "role_session_name");
  SS_ASSIGN(identity.endpoint,
            endpoint_of(from, {"AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"}, "endpoint_url"));
  return web_identity_credentials(identity, settings);
}

/// Of the container or of the instance; nothing if there are none.
Result<S3Credentials> of_this_machine(const Sources& from, const S3Settings& settings) {
  if (has_container_credentials(from.environment))
    return container_credentials(from.environment, settings);
  SS_ASSIGN(const std::string endpoint, endpoint_of(from, {"AWS_EC2_METADATA_SERVICE_ENDPOINT"},
                                                    "ec2_metadata_service_endpoint"));
  auto found = instance_credentials(from.environment, endpoint);
  if (found.status().code() == Code::not_found) return S3Credentials();
  return found;
}

bool empty(const S3Credentials& credentials) {
  return credentials.access_key_id.empty() && credentials.secret_access_key.empty();
}

/// settings: those of the services that are asked.
Result<S3Credentials> find_credentials(const Sources& from, const S3Settings& settings) {
  S3Credentials found{from.environment("AWS_ACCESS_KEY_ID"),
                      from.environment("AWS_SECRET_ACCESS_KEY"),
                      from.environment("AWS_SESSION_TOKEN")};
  std::string where = "the environment";
  if (empty(found)) {
    where = "the answer of STS";
    SS_ASSIGN(found, of_web_identity(from, settings));
  }
  for (const auto& [file, profile] : {std::pair{&from.credentials_file, &from.credentials},
                                      std::pair{&from.config_file, &from.config}}) {
    if (!empty(found)) break;
    found = of_profile(*profile);
    where = *file + ", profile " + from.profile;
    const auto program = profile->find("credential_process");
    if (empty(found) && program != profile->end()) {
      SS_ASSIGN(found, ask_program(program->second, where));
    }
  }
  if (empty(found)) {
    where = "the answer of this machine's service";
    SS_ASSIGN(found, of_this_machine(from, settings));
  }
  if (empty(found))
    return wrong(
        "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "write them, or a credential_process, to profile " +
        from.profile + " of " + from.credentials_file);
  if (found.access_key_id.empty() || found.secret_access_key.empty())
    return wrong(where + " has only one of the access key's id and its secret; give both");
  for (const std::string* text :
       {&found.access_key_id, &found.secret_access_key, &found.session_token})
    if (std::ranges::any_of(*text, [](unsigned char c) { return c <= 0x20 || c >= 0x7f; }))
      return wrong("a credential in " + where + " has a space or a control character");
  return found;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value ? value : "");
  };
}

Result<S3Settings> s3_settings(const Environment& environment) {
  const Sources from(environment);
  S3Settings out;
  if (const std::string region = from.get({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region");
      !region.empty())
    out.region = region;
  if (out.region.size() > 60 ||
      !std::ranges::all_of(out.region, [](unsigned char c) { return std::isalnum(c) || c == '-'; }))
    return wrong("the region is no region's name; set AWS_REGION");
  SS_ASSIGN(out.endpoint,
            endpoint_of(from, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "endpoint_url"));
  out.ca_bundle = from.get({"AWS_CA_BUNDLE"}, "ca_bundle");
  SS_ASSIGN(out.credentials, find_credentials(from, out));
  return out;
}

}  // namespace simplescale
