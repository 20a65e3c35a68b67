#include "runtime/base/log.hpp"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>

#include "runtime/base/printable.hpp"

namespace simplescale {

namespace {

/// %*: the message, which may quote other processes, as printable() text.
class PrintableMessage : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string text = printable({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return spdlog::details::make_unique<PrintableMessage>();
  }
};

std::unique_ptr<spdlog::formatter> pattern(const std::string& process) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PrintableMessage>('*');
  formatter->set_pattern("%Y-%m-%dT%H:%M:%S.%e " + process + " %^%l%$ %*");
  return formatter;
}

}  // namespace

void set_log_name(const std::string& process) {
  spdlog::default_logger()->set_formatter(pattern(process));
}

void init_logging(const std::string& process) {
  const bool color = isatty(STDERR_FILENO) && !std::getenv("NO_COLOR");
  std::shared_ptr<spdlog::logger> logger;
  if (color)
    logger = std::make_shared<spdlog::logger>(
        process, std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>());
  else
    logger = std::make_shared<spdlog::logger>(process,
                                              std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(pattern(process));
  const char* level = std::getenv("SIMPLESCALE_LOG");
  logger->set_level(level ? spdlog::level::from_str(level) : spdlog::level::info);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

namespace log {
namespace {

spdlog::level::level_enum of(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      break;
  }
  return spdlog::level::off;
}

}  // namespace

void set_level(Level level) {
  spdlog::set_level(of(level));
}

void write(Level level, fmt::string_view format, fmt::format_args args) noexcept {
  try {
    spdlog::logger& logger = *spdlog::default_logger_raw();
    if (logger.should_log(of(level))) logger.log(of(level), fmt::vformat(format, args));
  } catch (const std::exception& e) {  // no memory
    std::fprintf(stderr, "%s\n", e.what());
  }
}

}  // namespace log

}  // namespace simplescale
