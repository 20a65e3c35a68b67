// Logging: spdlog to stderr, level from SIMPLESCALE_LOG=debug|info|warn|error (info). Lines are
// formatted in log.cpp: spdlog's functions would compile fmt's into every file that logs.
#pragma once

#include <fmt/core.h>

#include <string>

namespace simplescale {

/// Called once, by main(). process: the name in each log line: "n0", "n1.0", "train", ...
void init_logging(const std::string& process);

/// Changes that name, for a process that learns it after main() has begun. Any thread.
void set_log_name(const std::string& process);

namespace log {

enum class Level { debug, info, warn, error, off };  // off: only for set_level()

/// Only lines of this level and above are printed.
void set_level(Level level);

/// Prints a line. Throws nothing. Any thread.
void write(Level level, fmt::string_view format, fmt::format_args args) noexcept;

template <class... Args>
void line(Level level, fmt::format_string<Args...> format, Args&&... args) {
  write(level, format, fmt::make_format_args(args...));
}

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::debug, format, fmt::make_format_args(args...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, format, fmt::make_format_args(args...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warn, format, fmt::make_format_args(args...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, format, fmt::make_format_args(args...));
}

}  // namespace log

}  // namespace simplescale
