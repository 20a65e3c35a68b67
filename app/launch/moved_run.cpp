#include "app/launch/moved_run.hpp"

#include <filesystem>
#include <utility>

#include "app/launch/command_line.hpp"
#include "app/terminal.hpp"
#include "runtime/base/bare_path.hpp"
#include "runtime/base/files.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/object_store/s3_url.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// True if the source exists. It is a file, a folder, or the prefix of Megatron files.
bool source_is_there(const std::string& path) {
  return is_there(path) || is_there(token_file_of(path)) || is_there(path + ".idx");
}

std::string normal(const std::string& path) {
  return bare_path(fs::absolute(path).lexically_normal().string());
}

/// The place of `path` if it was moved together with the run's folder.
std::string moved_path(const std::string& path, const Config& before, const Config& config) {
  const fs::path inside = fs::path(path).lexically_relative(normal(run_folder(before)));
  return inside.empty() ? path : normal((fs::path(run_folder(config)) / inside).string());
}

bool holds_tokens(const std::string& folder) {
  const auto made = read_manifest(folder);
  return made.ok() && made->complete();
}

/// The value of data.blend with another place for `name`, for a command line.
std::string blend_with(const Config& config, const std::string& name, const std::string& source) {
  Config c = config;
  for (BlendSource& one : c.data.blend)
    if (one.name == name) one.source = source;
  return schema::to_toml(schema::find("data.blend")->in(c));
}

}  // namespace

Result<std::optional<Config>> recorded_config(const RunFolder& run) {
  if (!is_there(run.config())) return std::optional<Config>();
  SS_ASSIGN(LoadedConfig loaded, load_config(run.config()));
  return std::optional<Config>(std::move(loaded.config));
}

bool is_named_alike(const std::string& was, const Config& before, const std::string& now,
                    const Config& config) {
  if (was.empty() || now.empty() || is_s3_url(was) || is_s3_url(now)) return was == now;
  return normal(was) == normal(now) || moved_path(normal(was), before, config) == normal(now);
}

void follow_moved_run(LoadedConfig& loaded, const Config& before) {
  Config& config = loaded.config;
  Config was = before;
  for (const schema::Key& key : schema::keys()) {
    const std::string name = key.full_name();
    if (name == "run.folder" || name == "data.cache_folder") continue;
    const auto old = schema::paths_of(key, was), now = schema::paths_of(key, config);
    for (size_t i = 0; i < now.size() && old.size() == now.size(); ++i) {
      if (now[i]->empty() || !now[i]->starts_with('/') || normal(*now[i]) != normal(*old[i]) ||
          source_is_there(*now[i]))
        continue;
      const std::string moved = moved_path(*now[i], before, config);
      const bool prepared = name == "data.folder" || (name == "data.blend" && i % 2 == 1);
      if (source_is_there(moved)) {
        terminal::error("%s: %s is gone; taking %s, which lies to the run's folder as it did\n",
                        name.c_str(), now[i]->c_str(), moved.c_str());
        *now[i] = moved;
      } else if (prepared && loaded.origin[name] != "command line") {
        now[i]->clear();
      }
    }
  }
}

void keep_token_folders(Config& config, const Config& before) {
  const auto place_of = [&](const std::string& folder) {
    const std::string moved = folder.empty() ? "" : moved_path(folder, before, config);
    return holds_tokens(folder) ? folder : holds_tokens(moved) ? moved : "";
  };
  if (config.data.blend.empty() && before.data.blend.empty() && config.data.folder.empty() &&
      !config.data.source.empty()) {
    config.data.folder = place_of(before.data.folder);
    // Tokens are read in place: their folder need not exist.
    if (config.data.folder.empty() && !is_s3_url(config.data.source) && source_is_tokens(config))
      config.data.folder = before.data.folder;
  }
  if (!config.data.folder.empty()) return;
  for (BlendSource& source : config.data.blend)
    for (const BlendSource& was : before.data.blend)
      if (was.name == source.name && source.folder.empty()) source.folder = place_of(was.folder);
}

std::string kept_tokenizer(const RunFolder& run) {
  for (const char* name : {kSentencePieceFile, kTokenizerJsonFile})
    if (is_there(run.control() + "/" + name)) return run.control() + "/" + name;
  return "";
}

Status use_kept_tokenizer(Config& config, const Config& before) {
  const std::string gone = config.tokenizer.path;
  std::error_code error;
  if (gone.empty() || fs::is_regular_file(tokenizer_file(config), error)) return {};
  const RunFolder run{run_folder(config)};
  std::string kept = kept_tokenizer(run);
  const bool uses_it = !kept.empty() && is_named_alike(before.tokenizer.path, before, kept, config);
  if (!uses_it && !is_named_alike(before.tokenizer.path, before, gone, config)) return {};
  if (kept.empty()) {  // an earlier version kept no copy
    const auto found = find_newest_valid(checkpoint_folder(config), Verify::sizes);
    const std::string path = found.ok() ? found->checkpoint.info().tokenizer : "";
    if (path.empty()) return {};
    SS_ASSIGN(const std::string text, read_tokenizer(path));
    kept = run.control() + "/" + tokenizer_file_name(path);
    SS_RETURN_IF_ERROR(write_file_atomic(kept, text));
  }
  terminal::error("tokenizer.path: %s is gone; taking the run's copy, %s\n", gone.c_str(),
                  kept.c_str());
  config.tokenizer.path = kept;
  return {};
}

Status keep_tokenizer(const RunFolder& run, const Config& config) {
  const std::string path = tokenizer_file(config);
  if (path.empty() || !kept_tokenizer(run).empty()) return {};
  SS_ASSIGN(const std::string text, read_tokenizer(path));
  return write_file_atomic(run.control() + "/" + tokenizer_file_name(path), text);
}

Status check_places(const Config& config) {
  const RunFolder run{run_folder(config)};
  if (!is_there(run.config())) return {};
  for (const ConfiguredSource& source : sources_of(config)) {
    const std::string& path = source.config.data.source;
    if (path.empty() || !path.starts_with('/') || source_is_there(path) ||
        (!source_is_tokens(source.config) && holds_tokens(data_folder(source.config))))
      continue;
    const bool blend = !source.name.empty();
    const std::string option = blend
                                   ? "--data.blend=" + blend_with(config, source.name, "NEW_PLACE")
                                   : "--data.source=NEW_PLACE";
    return Status(Code::bad_data,
                  (blend ? "data.blend: \"" + source.name + "\": " : "data.source: ") + path +
                      " is gone; the run continues with the same data at another place: " +
                      command_line({"resume", shown_path(run.path), option}));
  }
  return {};
}

}  // namespace simplescale
