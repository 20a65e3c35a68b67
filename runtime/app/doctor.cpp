// `doctor`: is this machine fit for a run? Checks, and what a person would want to know about it.
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/app/commands.hpp"
#include "runtime/base/diagnose.hpp"
#include "runtime/config/config.hpp"

extern char** environ;

namespace simplescale {

namespace {

namespace fs = std::filesystem;

/// The nearest folder above `path` that exists.
std::string existing(fs::path path) {
  path = fs::absolute(path);
  std::error_code error;
  while (!path.empty() && !fs::is_directory(path, error) && path != path.parent_path())
    path = path.parent_path();
  return path.string();
}

/// Variables that change how a run behaves.
nlohmann::json environment() {
  nlohmann::json found = nlohmann::json::object();
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    for (const char* prefix : {"UCX_", "NCCL_", "OMP_", "MKL_", "CUDA_", "SLURM_", "SIMPLESCALE_"})
      if (text.rfind(prefix, 0) == 0)
        found[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  return found;
}

}  // namespace

Status doctor_command(const std::string& config_file, const Overrides& overrides, bool json) {
  std::string folder = fs::current_path().string();
  if (!config_file.empty()) {
    SS_ASSIGN(const LoadedConfig loaded, load_config(config_file, overrides));
    folder = existing(run_folder(loaded.config));
  }
  const std::vector<CheckResult> results = check_machine(folder);
  utsname name{};
  uname(&name);
  const auto memory_gib = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                          static_cast<double>(sysconf(_SC_PAGE_SIZE)) / (1u << 30);
  const unsigned cores = std::thread::hardware_concurrency();
  if (json) {
    std::printf("%s\n", nlohmann::json{{"host", name.nodename},
                                       {"kernel", name.release},
                                       {"cores", cores},
                                       {"memory_gib", memory_gib},
                                       {"version", SIMPLESCALE_VERSION},
                                       {"environment", environment()},
                                       {"ok", all_ok(results)},
                                       {"checks", to_json(results)}}
                            .dump(1)
                            .c_str());
  } else {
    std::printf("%s: %u cores, %.1f GiB, Linux %s, simplescale %s\n%s", name.nodename, cores,
                memory_gib, name.release, SIMPLESCALE_VERSION, table(results).c_str());
    const nlohmann::json variables = environment();
    for (const auto& [key, value] : variables.items())
      std::printf("%s=%s\n", key.c_str(), value.get<std::string>().c_str());
  }
  std::fflush(stdout);
  if (all_ok(results)) return {};
  return Status(Code::unavailable, "this machine is not fit: " + complaints(results));
}

}  // namespace simplescale
