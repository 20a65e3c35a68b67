#include "runtime/base/log.hpp"

#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace simplescale {

namespace {
std::string pattern(const std::string& process) {
  return "%Y-%m-%dT%H:%M:%S.%e " + process + " %^%l%$ %v";
}
}  // namespace

void set_log_name(const std::string& process) {
  spdlog::default_logger()->set_pattern(pattern(process));
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
  logger->set_pattern(pattern(process));
  const char* level = std::getenv("SIMPLESCALE_LOG");
  logger->set_level(level ? spdlog::level::from_str(level) : spdlog::level::info);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace simplescale
