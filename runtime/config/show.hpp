// The texts that `config show` and `config validate` print.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.hpp"

namespace simplescale {

/// A table of every key with its value and origin (and the result of rules such as 0, -1 or ""),
/// then the plan: groups, shards, batch, steps, memory per trainer, and the hash of the numerics
/// signature on this host. If no plan is possible: the reason.
std::string show_config(const LoadedConfig& loaded);
/// The lines of that table whose keys have another value than their default; no plan.
std::string show_changed(const LoadedConfig& loaded);

/// What a key means: its comment, values, default, and whether it may change in a run that exists.
/// Of a section: its keys with their defaults. usage: there is no such key.
Result<std::string> explain_key(const std::string& name);

/// In the order of the file's lines, then what belongs to no line. All reasons why `train` would refuse the config, each in one line; empty if it can be trained.
std::vector<Status> validate_config(const CheckedConfig& checked);
/// One line about a config that can be trained.
Result<std::string> valid_text(const LoadedConfig& loaded);

/// What carries collectives between two hosts, and how it is protected: a part of a sentence.
std::string collectives_between_hosts(const Config& config);

}  // namespace simplescale
