// Sets up logging: spdlog to stderr, level from SIMPLESCALE_LOG=debug|info|warn|error (info).
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace simplescale {

/// Called once, by main(). process: the name in each log line: "n0", "n1.0", "train", ...
void init_logging(const std::string& process);

/// Changes that name, for a process that learns it after main() has begun. Any thread.
void set_log_name(const std::string& process);

namespace log = spdlog;  // log::info("fmt {}", x), log::warn, log::error, log::debug

}  // namespace simplescale
