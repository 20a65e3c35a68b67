#include "runtime/data/data_sources.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>

#include "runtime/base/input_file.hpp"
#include "runtime/data/data_files.hpp"
#include "runtime/data/folder_files.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/data/text_names.hpp"
#include "runtime/data/token_format.hpp"
#include "runtime/object_store/s3_url.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

namespace {
/// The tokenizer of the blend's first source that prepare() wrote to a disk; "": there is none.
std::string prepared_tokenizer(const Config& config) {
  for (const BlendSource& source : config.data.blend) {
    if (source.format.value_or(config.data.format) == DataFormat::text) continue;
    if (const auto made = read_manifest(source.source); made.ok() && made->complete())
      return source.source + "/" + made->tokenizer.name;
  }
  return "";
}
}  // namespace

std::vector<ConfiguredSource> sources_of(const Config& config) {
  if (config.data.blend.empty()) return {{"", config}};
  std::vector<ConfiguredSource> sources;
  std::string tokenizer = config.tokenizer.path;
  if (tokenizer.empty()) tokenizer = prepared_tokenizer(config);
  for (const BlendSource& one : config.data.blend) {
    Config c = config_of(config, one);
    c.run.name += "/" + one.name;  // of the default folder
    if (!config.data.folder.empty()) c.data.folder += "/" + one.name;
    if (!one.folder.empty()) c.data.folder = one.folder;
    c.tokenizer.path = tokenizer;
    if (tokenizer.empty() && !source_is_tokens(c))
      tokenizer = data_folder(c) + "/" +
                  trained_tokenizer_file(config.tokenizer.kind != TokenizerKind::bpe);
    sources.push_back({one.name, std::move(c)});
  }
  return sources;
}

std::string tokenizer_file(const Config& config) {
  std::error_code error;
  const std::string& path = config.tokenizer.path;
  const bool folder = !path.empty() && std::filesystem::is_directory(path, error);
  const std::string inside = folder ? find_tokenizer(path) : "";
  return inside.empty() ? path : inside;
}

namespace {
/// By its name, a text about the files beside it.
bool describes_others(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::any_of(
      std::array<std::string, 7>{"readme", "license", "licence", "copying", "notice", "changelog",
                                 "citation"},
      [&](const std::string& word) {
        return name.starts_with(word) &&
               (name.size() == word.size() ||
                std::isalpha(static_cast<unsigned char>(name[word.size()])) == 0);
      });
}

/// The first file of a folder that is text to train on; "" without one.
std::string first_text(const std::string& folder) {
  const auto found = list_folder(folder, Below::yes);
  if (!found.ok()) return "";
  for (const std::string& path : found->files)
    if (is_text_file(path) && !describes_others(path)) return path;
  return "";
}

bool is_dataset(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / "manifest.json", error) ||
         std::filesystem::exists(folder / "train.bin", error);
}
}  // namespace

bool source_is_tokens(const Config& config) {
  namespace fs = std::filesystem;
  if (config.data.format == DataFormat::text) return false;
  if (config.data.format != DataFormat::automatic) return true;
  const fs::path source = config.data.source;
  if (source.string().starts_with("debian:")) return false;
  if (is_s3_url(source.native())) return !is_text_name(source.native());
  std::error_code error;
  if (fs::is_directory(source, error))
    return is_dataset(source) ||
           (!DataFiles().token_files(source.string()).empty() && first_text(source).empty());
  return is_token_name(token_file_of(source.string()));
}

Status check_source(const Config& config) {
  const std::string& source = config.data.source;
  std::error_code error;
  if (source_is_tokens(config) && !is_s3_url(source) && !std::filesystem::exists(source, error) &&
      !std::filesystem::exists(source + ".idx", error))
    return Status(Code::bad_data, source + ": there is no such file or folder");
  if (config.data.format != DataFormat::automatic || is_s3_url(source) ||
      !std::filesystem::is_directory(source, error) || is_dataset(source))
    return {};
  const std::vector<std::string> tokens = DataFiles().token_files(source);
  const std::string text = tokens.empty() ? "" : first_text(source);
  if (text.empty()) return {};
  return Status(Code::bad_data, source + " holds tokens (" + tokens.front() + ") and text (" +
                                    text +
                                    "): set data.format = \"text\" or the format of the "
                                    "tokens, or move one of them to another folder");
}

bool needs_preparation(const Config& config) {
  return std::ranges::any_of(sources_of(config), [](const ConfiguredSource& source) {
    if (source.config.data.source.empty() || source_is_tokens(source.config)) return false;
    const std::string folder = data_folder(source.config);
    const auto manifest = read_manifest(folder);
    return !manifest.ok() || !manifest->complete() ||
           std::ranges::any_of(manifest->files(), [&](const FileRecord* record) {
             if (record->hash.empty()) return false;
             const auto bytes = file_bytes(folder + "/" + record->name);
             return !bytes.ok() || *bytes != record->bytes;
           });
  });
}

std::string token_path(const Config& config) {
  return source_is_tokens(config) ? config.data.source : data_folder(config);
}

}  // namespace simplescale
