// A run that is started again after its folder, its data or its tokenizer was moved. A run is
// identified by the contents of these, not by their places; record_start() compares the contents.
// Blocks on the disk; the caller's thread.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// A run's configuration as its newest start wrote it; nullopt: the run does not exist yet.
Result<std::optional<Config>> recorded_config(const RunFolder& run);

/// True if two starts name the same place: by the same path, or by paths with the same position
/// relative to the run's folder, which was moved with them.
bool is_named_alike(const std::string& was, const Config& before, const std::string& now,
                    const Config& config);

/// Updates paths that `loaded` shares with `before` and that no longer exist: if such a path exists
/// at the same position relative to the run's folder, takes that, and prints so. Clears folders of
/// prepared tokens that no longer exist: they are found or made again.
void follow_moved_run(LoadedConfig& loaded, const Config& before);

/// Keeps the run's prepared tokens, if they exist and the configuration names no others.
void keep_token_folders(Config& config, const Config& before);

/// If the file that tokenizer.path names is gone, and it was the run's tokenizer, takes the copy in
/// the run's folder, and prints so. io: the copy cannot be written.
Status use_kept_tokenizer(Config& config, const Config& before);
/// The path of that copy; "" if there is none.
std::string kept_tokenizer(const RunFolder& run);
/// Keeps a copy of tokenizer.path in the run's folder for use_kept_tokenizer(). Errors of
/// read_tokenizer(); io.
Status keep_tokenizer(const RunFolder& run, const Config& config);

/// bad_data: a source of an existing run is gone, and its tokens, too. The message names the option
/// for its new place.
Status check_places(const Config& config);

}  // namespace simplescale
