// The secrets of a configuration (schema::Key::is_secret) leave it only into control/secrets.toml of
// the run, of mode 0600; and which processes of a run need those of the environment.
//
//   SECRET-1  A secret of the configuration is in no record, log, page, message or command line.
#pragma once

#include <string>
#include <utility>

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
/// them; io.
Result<std::string> secrets_beside(const std::string& config_file);

/// The overrides for the command line of a child, which all users can read, and the others, for the
/// variable kSecretOverrides of its environment.
inline constexpr const char* kSecretOverrides = "SIMPLESCALE_SECRET_OVERRIDES";
std::pair<Overrides, std::string> without_secrets(const Overrides& overrides);
/// Those of the environment, which no child gets. Not while another thread reads the environment.
Overrides take_secret_overrides();

/// Trainers read data from a bucket; agents and supervisors, too, or they upload checkpoints there,
/// or a command in supervision.notify may need what the user has set.
bool trainers_need_secrets(const Config& config);
bool agents_need_secrets(const Config& config);

}  // namespace simplescale
