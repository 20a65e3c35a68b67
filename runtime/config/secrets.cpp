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
#include "runtime/base/own_folder.hpp"
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
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || !is_trusted(info.st_uid) ||
      access(path.c_str(), R_OK) != 0)
    return std::string();
  if ((info.st_mode & 022) != 0)
    return Status(Code::bad_config, path +
                                        " can be written by other users, so it is not trusted: " +
                                        "remove it, or check what it holds and chmod 600 " + path);
  return read_text(path, kTomlBytesMax);
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

bool trainers_need_secrets(const Config& config) {
  return is_s3_url(config.data.source) ||
         std::ranges::any_of(config.data.blend, is_s3_url, &BlendSource::source);
}

bool agents_need_secrets(const Config& config) {
  const std::string& notify = config.supervision.notify;
  const bool command =
      !notify.empty() && !notify.starts_with("http://") && !notify.starts_with("https://");
  return trainers_need_secrets(config) || !config.checkpoint.upload.empty() || command;
}

}  // namespace simplescale
