// Logging for every process: spdlog to stderr, level from SIMPLESCALE_LOG=debug|info|warn|error.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace simplescale {

/// Call once in main(). `process` is the name lines are tagged with: "n0", "n1.0", "train", ...
void init_logging(const std::string& process);

/// Changes the name: a process may learn later who it is. Any thread.
void set_log_name(const std::string& process);

namespace log = spdlog;  // log::info("fmt {}", x), log::warn, log::error, log::debug

}  // namespace simplescale
