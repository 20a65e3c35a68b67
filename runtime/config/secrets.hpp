// The secrets of a configuration (schema::Key::is_secret) leave it only into control/secrets.toml of
// the run, of mode 0600; and which processes of a run need those of the environment.
//
//   SECRET-1  A secret of the configuration is in no record, log, page, message or command line.
#pragma once

#include <string>
#include <utility>

#include "runtime/base/child_environment.hpp"
#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

/// As to_toml(), but a comment stands in place of each secret that is set.
std::string public_toml(const Config& config);
/// The secrets that are set, as a TOML file; "": none.
std::string secrets_toml(const Config& config);

/// Writes config.toml and control/secrets.toml of a run folder, whose control/ exists. io.
Status save_config(const std::string& run_folder, const Config& config);
/// The text of the control/secrets.toml that belongs to this config.toml. "": the file is no
/// config.toml; there are no secrets; or they are another user's. bad_config: other users may write
/// them, or the file is this user's and cannot be read.
Result<std::string> secrets_beside(const std::string& config_file);

/// What may be shown of files that older versions wrote, with the secrets in them: of a config.toml,
/// and of lines of events.jsonl.
std::string shown_toml(const std::string& text);
std::string shown_events(const std::string& lines);

/// The overrides for the command line of a child, which all users can read, and the others, for the
/// variable kSecretOverrides of its environment.
inline constexpr const char* kSecretOverrides = "SIMPLESCALE_SECRET_OVERRIDES";
std::pair<Overrides, std::string> without_secrets(const Overrides& overrides);
/// Those of the environment, which no child gets. Not while another thread reads the environment.
Overrides take_secret_overrides();

/// What of the environment reaches trainers, which may read data from a bucket; and agents and
/// supervisors, which may also upload checkpoints, or start the user's command (supervision.notify).
Inherits trainers_inherit(const Config& config);
Inherits agents_inherit(const Config& config);

}  // namespace simplescale
