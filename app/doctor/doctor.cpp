// `doctor`: checks whether this machine is fit for a run and prints what matters about it. As one
// of several tasks of Slurm it checks all hosts together (fleet_doctor.hpp).
#include <signal.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "app/commands/commands.hpp"
#include "app/doctor/fleet_doctor.hpp"
#include "app/doctor/logind.hpp"
#include "app/hosts/hosts.hpp"
#include "app/hosts/task.hpp"
#include "app/launch/mixture_text.hpp"
#include "app/launch/run_start.hpp"
#include "app/report.hpp"
#include "app/terminal.hpp"
#include "runtime/base/instruction_set.hpp"
#include "runtime/base/network.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/run_command.hpp"
#include "runtime/base/words.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/show.hpp"
#include "runtime/diagnostics/diagnose.hpp"
#include "runtime/diagnostics/hardware.hpp"
#include "runtime/object_store/object_store.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/run/run_key.hpp"
#include "transport/gpu/nccl_network.hpp"
#include "transport/ucx/library.hpp"

extern char** environ;

namespace simplescale {

namespace {

namespace fs = std::filesystem;

// The checks of `doctor` on the buckets that a configuration names. Blocks on the network for at
// most half a minute a bucket; writes and removes one small object below checkpoint.upload.

StoreLimits short_limits() {
  StoreLimits limits;
  limits.tries = 3, limits.deadline_ms = 10'000;
  limits.http.stall_timeout_s = 10, limits.http.request_timeout_ms = 10'000;
  return limits;
}

/// What was found, or the error. path: of the source.
Result<std::string> check_source(const std::string& path) {
  SS_ASSIGN(const S3Url url, parse_s3_url(path));
  SS_ASSIGN(const auto store, open_object_store(url, short_limits()));
  const std::string stem = std::filesystem::path(url.key).replace_extension("").string();
  SS_ASSIGN(std::vector<ObjectFacts> objects, store->list(stem));
  std::erase_if(objects, [&](const ObjectFacts& object) {
    return object.bytes == 0 || !(object.key == url.key || object.key.starts_with(stem + ".") ||
                                  object.key.starts_with(url.key.empty() ? "" : url.key + "/"));
  });
  if (objects.empty())
    return Status(Code::bad_data, url.text() +
                                      ": the bucket holds no such object; correct the "
                                      "name, or upload it");
  std::array<char, 1> byte{};
  const ObjectFacts& first = objects.front();
  SS_RETURN_IF_ERROR(store->get_range(first.key, first.bytes - 1, byte, first.etag));
  uint64_t bytes = 0;
  for (const ObjectFacts& object : objects) bytes += object.bytes;
  return url.text() + ": " + counted(static_cast<int64_t>(objects.size()), "object") + ", " +
         std::to_string(bytes) + " bytes, listed and read";
}

/// Puts an object, and checks that both conditions keep it from being replaced.
Status check_conditions(ObjectStore& store, const std::string& key) {
  const auto refused = [&](const char* header, const Result<std::string>& put) -> Status {
    if (put.status().code() == Code::mismatch) return {};
    if (!put.ok()) return put.status();
    return {Code::bad_config, store.url(key) + ": the server ignores the condition of a put (" +
                                  header +
                                  "), which protects the checkpoints; use a server that keeps it"};
  };
  const std::string text = "written by simplescale doctor", other = text + " again";
  SS_RETURN_IF_ERROR(store.put(key, text, {.if_absent = true}).status());
  SS_RETURN_IF_ERROR(refused("If-None-Match", store.put(key, other, {.if_absent = true})));
  SS_RETURN_IF_ERROR(refused("If-Match", store.put(key, other, {.if_etag = "\"0\""})));
  return store.get(key, 1 << 10).status();
}

Result<std::string> check_upload(const std::string& path) {
  SS_ASSIGN(const S3Url url, parse_s3_url(path));
  SS_ASSIGN(const auto store, open_object_store(url, short_limits()));
  SS_RETURN_IF_ERROR(store->list(url.below("doctor-")).status());
  const std::string key = url.below("doctor-" + unique_id());
  const Status conditions = check_conditions(*store, key);
  const Status removed = store->remove(key);
  SS_RETURN_IF_ERROR(conditions);
  SS_RETURN_IF_ERROR(removed);
  return url.text() + ": listed, written with conditions, read and removed";
}

CheckResult result_of(const std::string& key, const Result<std::string>& found) {
  return {"bucket", found.ok(), 0, "",
          key + ": " + (found.ok() ? *found : found.status().message())};
}

/// A check of each source in a bucket (credentials, list, read) and of checkpoint.upload
/// (credentials, list, conditional puts, read, remove). `detail` shows no secret.
std::vector<CheckResult> check_buckets(const Config& config) {
  std::vector<CheckResult> results;
  for (const auto& [name, of] : sources_of(config))
    if (is_s3_url(of.data.source))
      results.push_back(result_of(name.empty() ? "data.source" : "data.blend: " + name,
                                  check_source(of.data.source)));
  if (!config.checkpoint.upload.empty())
    results.push_back(result_of("checkpoint.upload", check_upload(config.checkpoint.upload)));
  return results;
}

/// `path` or its nearest parent that is an existing folder.
std::string existing(fs::path path) {
  path = fs::absolute(path);
  std::error_code error;
  while (!path.empty() && !fs::is_directory(path, error) && path != path.parent_path())
    path = path.parent_path();
  return path.string();
}

/// Environment variables that change how a run behaves.
nlohmann::json environment() {
  nlohmann::json found = nlohmann::json::object();
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!inherits_variable(Inherits::needed, text.substr(0, text.find('='))))
      continue;  // SLURM_JWT
    for (const char* prefix : {"UCX_", "NCCL_", "OMP_", "MKL_", "CUDA_", "SLURM_", "SIMPLESCALE_"})
      if (text.rfind(prefix, 0) == 0)
        found[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  return found;
}

struct Target {
  Config config;
  std::string folder;      // existing folder to check for writing
  std::string run;         // the run's folder, or empty
  std::string rendezvous;  // path prefix of the rendezvous folder; the task's instance completes it
  std::function<std::vector<CheckResult>()> check_inputs;
};

Result<Target> target_of(const std::string& config_file, Overrides overrides,
                         const std::string& run) {
  if (!run.empty()) overrides.push_back("--run.folder=" + run);
  const std::string here = fs::current_path().string();
  Target target{{}, here, "", here + "/.simplescale-doctor-"};
  std::string path = run;
  if (!config_file.empty()) {
    SS_ASSIGN(LoadedConfig loaded, load_user_config(config_file, overrides));
    target.config = std::move(loaded.config);
    path = run_folder(target.config);
  }
  if (path.empty()) return target;
  path = fs::absolute(path).lexically_normal().string();
  target.folder = existing(path);
  target.run = path;
  target.rendezvous = RunFolder{path}.control() + "/doctor-";
  return target;
}

/// The trusted networks on which this host lies: "10.1.0.0/16 (ib0)".
std::vector<std::string> trusted_here(const Config& config) {
  const auto networks = parse_trusted_networks(config.transport.trusted_networks);
  std::vector<std::string> found;
  if (networks.ok())
    for (const auto& [network, interface] : trusted_interfaces(*networks, local_addresses()))
      found.push_back(network + " (" + interface + ")");
  return found;
}

constexpr const char* kMessages = "over encrypted TCP";  // between hosts

/// What NCCL would be limited to in a run over several hosts; empty: it would not be used.
std::string nccl_here(const Config& config) {
  const std::string& trusted = config.transport.trusted_networks;
  if (config.cluster.device == DeviceKind::cpu || !nccl_is_allowed(true, trusted)) return "";
  return describe(nccl_variables(true, trusted, local_addresses()));
}

/// UCX, the buckets and, if they answer, all else that a run of the configuration reads.
std::vector<CheckResult> check_inputs(const std::string& config_file, const Overrides& overrides,
                                      const std::string& run, const Config& config) {
  std::vector<CheckResult> results = check_buckets(config);
  if (!trusted_here(config).empty())
    if (const Status ucx = ucx::load(); !ucx.ok())
      results.push_back({"UCX", false, 0, "", ucx.message()});
  if (config_file.empty() || !all_ok(results)) return results;
  const auto start = resolve_run_start(config_file, overrides, run);
  const Status found = start.ok() ? check_before_start(*start) : start.status();
  results.push_back(
      {"run", found.ok(), 0, "", found.ok() ? config_file + ": can begin" : found.message()});
  return results;
}

Status check_this_machine(const Target& target, bool json) {
  const Config& config = target.config;
  std::vector<CheckResult> results = check_machine(target.folder);
  for (CheckResult& result : target.check_inputs()) results.push_back(std::move(result));
  utsname name{};
  uname(&name);
  const auto memory_gib = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                          static_cast<double>(sysconf(_SC_PAGE_SIZE)) / (1u << 30);
  const unsigned cores = std::thread::hardware_concurrency();
  const Hardware hardware = read_hardware();
  if (json) {
    terminal::print("%s\n",
                    nlohmann::json{{"host", name.nodename},
                                   {"kernel", name.release},
                                   {"cores", cores},
                                   {"instructions", to_string(best_instructions())},
                                   {"memory_gib", memory_gib},
                                   {"version", SIMPLESCALE_VERSION},
                                   {"environment", environment()},
                                   {"hardware", hardware_json(hardware)},
                                   {"messages_between_hosts", kMessages},
                                   {"collectives_between_hosts", collectives_between_hosts(config)},
                                   {"trusted_networks_here", trusted_here(config)},
                                   {"nccl_between_hosts", nccl_here(config)},
                                   {"ok", all_ok(results)},
                                   {"checks", to_json(results)}}
                        .dump(1)
                        .c_str());
  } else {
    terminal::print("%s: %u cores with %s, %.1f GiB, Linux %s, simplescale %s\n%s%s%s",
                    name.nodename, cores, to_string(best_instructions()), memory_gib, name.release,
                    SIMPLESCALE_VERSION, table(results).c_str(), hardware_text(hardware).c_str(),
                    logind_text().c_str());
    const nlohmann::json variables = environment();
    for (const auto& [key, value] : variables.items())
      terminal::print("%s=%s\n", key.c_str(), value.get<std::string>().c_str());
    const std::string trusted = joined(trusted_here(config), ", ");
    terminal::print(
        "network: a run on one host uses none; on several hosts messages go %s, %s; this host is "
        "on "
        "%s\n",
        kMessages, collectives_between_hosts(config).c_str(),
        trusted.empty() ? "no trusted network" : trusted.c_str());
    if (const std::string nccl = nccl_here(config); !nccl.empty())
      terminal::print("NCCL between hosts: %s\n", nccl.c_str());
    if (all_ok(results)) terminal::print("this machine is fit to train\n");
  }
  std::fflush(stdout);
  if (all_ok(results)) return {};
  return Status(Code::gave_up, "this machine is not fit to train: " + complaints(results));
}

/// In the shell or script of an allocation: replaces this process by srun over all hosts. Returns
/// only if srun cannot be executed.
void become_srun(int hosts, std::vector<std::string> arguments) {
  // --overlap: other steps of the allocation keep running. --cpu-bind=none: on all cores.
  const std::string count = std::to_string(hosts);
  arguments.insert(
      arguments.begin(),
      {"srun", "--overlap", "--nodes=" + count, "--ntasks=" + count, "--ntasks-per-node=1",
       "--cpu-bind=none", "--kill-on-bad-exit=0", program_folder() + "/simplescale", "doctor"});
  terminal::error("simplescale: checking all %d hosts of the allocation: %s\n", hosts,
                  shell_text(arguments).c_str());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  terminal::error(
      "simplescale: cannot run srun: %s; checking only this machine. To check all hosts, run "
      "the command above where srun is installed\n",
      std::strerror(errno));
}

}  // namespace

int doctor_command(const std::string& config_file, Overrides overrides, const std::string& run,
                   bool json, const HostRank& rank) {
  if (config_file.empty() && !overrides.empty())
    return report_status(
        Status(Code::usage, "CONFIG is missing: " + overrides[0] + " sets a key of a file"));
  auto target = target_of(config_file, overrides, run);
  if (!target.ok()) return report_status(target.status());
  target->check_inputs = [&config_file, overrides, run, config = target->config] {
    return check_inputs(config_file, overrides, run, config);
  };
  signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of file sizes fails with EFBIG
  if (Status fits = check_rank(rank); !fits.ok()) return report_status(fits);
  std::optional<HostPlace> place;
  if (rank.nnodes > 1) {
    if (target->run.empty())
      return report_status(Status(
          Code::usage, "--nnodes: name a folder that all hosts share, by CONFIG or --run=FOLDER"));
    auto met = meet_for_doctor({target->run}, target->config, rank);
    if (!met.ok()) return report_status(met.status());
    place.emplace(met.take());
  }
  if (const auto task = slurm_task(); task && task->tasks > 1) {
    if (!target->run.empty())
      if (Status own = make_control({target->run}); !own.ok()) return report_status(own);
    const int code = fleet_doctor(
        {target->config, *task, target->rendezvous + task->instance, target->check_inputs, json});
    if (place) end_doctor({target->run}, *place);
    return code;
  }
  const int hosts = slurm::allocation_of(environment_variable);
  if (hosts > 1) {
    std::vector<std::string> arguments = std::move(overrides);
    if (!config_file.empty()) arguments.insert(arguments.begin(), config_file);
    if (!run.empty()) arguments.push_back("--run=" + run);
    if (json) arguments.emplace_back("--json");
    become_srun(hosts, std::move(arguments));
  }
  if (const std::string mixture = mixture_text(target->config); !json && !mixture.empty())
    terminal::print("%s\n", mixture.c_str());
  return report_status(check_this_machine(*target, json));
}

}  // namespace simplescale
