// A run that is started again after its folder, its data or its tokenizer was moved. Where they lie
// does not make a run: what they hold does, which record_start() compares. Blocks on the disk; the
// caller's thread.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// A run's configuration as its newest start wrote it; nullopt: there is no run yet.
Result<std::optional<Config>> recorded_config(const RunFolder& run);

/// True if two starts name one place: with one path, or with paths that lie in the same way to the
/// folder of the run, which was moved with them.
bool is_named_alike(const std::string& was, const Config& before, const std::string& now,
                    const Config& config);

/// Paths of `before` that `loaded` has, too, and that are gone: takes those that lie to the run's
/// folder as the old ones lay, if they are there, and says so. Forgets folders of prepared tokens
/// that are gone: they are found or made again.
void follow_moved_run(LoadedConfig& loaded, const Config& before);

/// A run goes on with its prepared tokens, if they are there and the configuration names no others.
void keep_token_folders(Config& config, const Config& before);

/// The tokenizer that tokenizer.path names is gone, and is that of the run: takes the copy that the run
/// holds, and says so.
/// io: the copy cannot be written.
Status use_kept_tokenizer(Config& config, const Config& before);
/// That copy's path; "" without one.
std::string kept_tokenizer(const RunFolder& run);
/// Keeps a copy of tokenizer.path in the run's folder for use_kept_tokenizer(). Errors of
/// read_tokenizer(); io.
Status keep_tokenizer(const RunFolder& run, const Config& config);

/// bad_data: a source of a run that exists is gone, and so are its tokens. Names the option that
/// names its new place.
Status check_places(const Config& config);

}  // namespace simplescale
