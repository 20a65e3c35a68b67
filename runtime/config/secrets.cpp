#include "runtime/config/secrets.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/own_folder.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/parse_toml.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/object_store/s3_url.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {
const char* const kSecretsFile = "control/secrets.toml";
constexpr char kBetweenOverrides = '\x1e';  // ASCII's record separator
}  // namespace

Status save_config(const std::string& run_folder, const Config& config) {
  const std::string path = run_folder + "/" + kSecretsFile, secrets = secrets_toml(config);
  if (!secrets.empty())
    SS_RETURN_IF_ERROR(write_file_atomic(path, secrets, 0600));
  else if (unlink(path.c_str()) != 0 && errno != ENOENT)
    return system_error("cannot remove", path, errno);
  return write_file_atomic(run_folder + "/config.toml", public_toml(config));
}

Result<std::string> secrets_beside(const std::string& config_file) {
  const fs::path file(config_file);
  if (file.filename() != "config.toml") return std::string();
  const std::string path = (file.parent_path() / kSecretsFile).string();
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !is_trusted(info.st_uid)) return std::string();
  const bool mine = info.st_uid == geteuid();
  if (!mine && (!S_ISREG(info.st_mode) || access(path.c_str(), R_OK) != 0)) return std::string();
  const auto wrong = [&](const std::string& what, const std::string& mend) {
    return Status(Code::bad_config, path + ", with secret keys of config.toml, " + what +
                                        ". Remove it to go on without them, or " + mend);
  };
  if (!S_ISREG(info.st_mode)) return wrong("is not a regular file", "put the file itself there");
  if ((info.st_mode & 022) != 0)
    return wrong("can be written by other users, so it is not trusted",
                 "check what it holds and chmod 600 " + path);
  auto text = read_text(path, kTomlBytesMax);
  if (!text.ok())
    return wrong("cannot be read: " + text.status().message(),
                 "make it readable: chmod 600 " + path);
  // The parser's message would show a part of the line.
  if (const auto parsed = parse_toml(*text, path); !parsed.ok())
    return wrong("is damaged: it is no TOML", "write it anew: supervision.notify = \"…\"");
  return text;
}

std::string shown_toml(const std::string& text) {
  auto parsed = parse_toml(text, "config.toml");
  if (!parsed.ok()) return "# config.toml cannot be shown: it is no TOML\n";
  bool changed = false;
  for (const schema::Key& key : schema::keys()) {
    toml::table* section = key.is_secret ? (*parsed)[key.section].as_table() : nullptr;
    const toml::node* value = section ? section->get(key.name) : nullptr;
    if (!value || value->value_or(std::string("?")).empty()) continue;
    section->insert_or_assign(key.name, "(secret)");
    changed = true;
  }
  if (!changed) return text;
  std::ostringstream out;
  out << *parsed << "\n";
  return out.str();
}

std::string shown_events(const std::string& lines) {
  std::string shown;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    std::string line = lines.substr(begin, end - begin);
    const auto names_it = [&](const schema::Key& key) {
      return key.is_secret && line.find('"' + key.full_name() + '"') != line.npos;
    };
    if (std::ranges::any_of(schema::keys(), names_it) && line.find("(secret)") == line.npos) {
      nlohmann::json event = parse_json(line);
      if (event.is_object()) event["reason"] = "was changed; its values are (secret)";
      line = json_text(event);
    }
    shown += line;
    if (end < lines.size()) shown += '\n';
    begin = end + 1;
  }
  return shown;
}

std::pair<Overrides, std::string> without_secrets(const Overrides& overrides) {
  std::pair<Overrides, std::string> parts;
  for (const std::string& text : overrides) {
    const size_t begin = std::min(text.find_first_not_of('-'), text.size());
    const schema::Key* key = schema::find(text.substr(begin, text.find('=', begin) - begin));
    if (key && key->is_secret)
      parts.second += text + kBetweenOverrides;
    else
      parts.first.push_back(text);
  }
  return parts;
}

Overrides take_secret_overrides() {
  Overrides overrides;
  const char* texts = std::getenv(kSecretOverrides);
  std::istringstream rest(texts ? texts : "");
  for (std::string text; std::getline(rest, text, kBetweenOverrides);) overrides.push_back(text);
  unsetenv(kSecretOverrides);
  return overrides;
}

Inherits trainers_inherit(const Config& config) {
  const bool bucket = is_s3_url(config.data.source) ||
                      std::ranges::any_of(config.data.blend, is_s3_url, &BlendSource::source);
  return bucket ? Inherits::with_bucket : Inherits::needed;
}

Inherits agents_inherit(const Config& config) {
  const std::string& notify = config.supervision.notify;
  if (!notify.empty() && !notify.starts_with("http://") && !notify.starts_with("https://"))
    return Inherits::all;
  return config.checkpoint.upload.empty() ? trainers_inherit(config) : Inherits::with_bucket;
}

}  // namespace simplescale
