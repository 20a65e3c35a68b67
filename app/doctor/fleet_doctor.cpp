#include "app/doctor/fleet_doctor.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <caf/all.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "actors/diagnosis/node_check.hpp"
#include "app/launch/manifest.hpp"
#include "app/processes/actor_process.hpp"
#include "app/report.hpp"
#include "app/terminal.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/process.hpp"
#include "runtime/diagnostics/fleet.hpp"
#include "runtime/diagnostics/hardware.hpp"
#include "runtime/run/rendezvous.hpp"

namespace simplescale {

namespace {

using nlohmann::json;

constexpr int kNodeLookupMs = 3'000;

std::string host_of(const slurm::Task& task) {
  if (!task.host.empty()) return task.host;
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

/// Answers pings: other hosts measure their links to this actor.
caf::behavior echo() {
  return {[](const Ping& ping) { return Pong{ping.id, ping.payload}; }};
}

/// The transport of this host, for measuring the links to other hosts.
class Links {
 public:
  Links(const FleetDoctorOptions& o, const RunFolder& folder) {
    auto started = ActorProcess::start(o.config, folder, o.task.instance, 2);
    if (!started.ok()) {
      error_ = started.status().message();
      return;
    }
    process_ = started.take();
    echo_ = process_->system().spawn(echo);
    process_->transport().publish("node", echo_);
  }
  ~Links() {
    if (!process_) return;
    caf::anon_send_exit(echo_, caf::exit_reason::user_shutdown);
    echo_ = nullptr;
    process_->transport().stop();
  }
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  /// "" if the transport could not start: no host can measure a link to this one.
  std::string address() const { return process_ ? process_->transport().address() : ""; }

  /// Measures every link twice and keeps the better value, since all hosts measure at the same
  /// time.
  std::vector<CheckResult> check(const std::vector<LinkEnd>& ends) {
    if (!process_) return {{"link", false, 0, "GB/s", error_}};
    const auto find = [this](const std::string& address) {
      return process_->transport().lookup(address, "node", kNodeLookupMs);
    };
    std::vector<CheckResult> best = check_links(process_->system(), find, ends);
    const std::vector<CheckResult> again = check_links(process_->system(), find, ends);
    for (size_t i = 0; i < best.size(); ++i) {
      const bool better =
          best[i].unit == "us" ? again[i].value < best[i].value : again[i].value > best[i].value;
      if (again[i].ok && (!best[i].ok || better)) best[i] = again[i];
    }
    return best;
  }

 private:
  std::unique_ptr<ActorProcess> process_;
  caf::actor echo_;
  std::string error_;
};

/// The links that `task` measures: to the tasks that follow it in `tasks`, by task.
std::map<int, LinkEnd> links_of(const Rendezvous& rendezvous, int task,
                                const std::set<int>& tasks) {
  std::vector<std::string> order;
  for (const int other : tasks) order.push_back(std::to_string(other));
  std::map<int, LinkEnd> known;
  const auto peers = link_peers(order, std::to_string(task), [&](const std::string& name) {
    const int other = std::atoi(name.c_str());
    const json document = rendezvous.read("here", other);
    known[other] = {text_of(document, "host"), text_of(document, "address")};
    return !known[other].address.empty();
  });
  std::map<int, LinkEnd> ends;
  for (const std::string& name : peers) ends.insert(known.extract(std::atoi(name.c_str())));
  return ends;
}

/// Removes failed links from `checks` if none of the peers has reported: the peers may be at fault,
/// not this host.
void drop_unproven_link_failures(std::vector<CheckResult>& checks, const json& peers,
                                 const std::set<int>& reported) {
  if (!peers.is_array() || peers.empty()) return;
  for (const json& peer : peers)
    if (peer.is_number_integer() && reported.contains(peer.get<int>())) return;
  std::erase_if(checks, [](const CheckResult& r) { return !r.ok && r.check.starts_with("link"); });
}

/// The host of every task, including tasks that did not join. "task 3" if the host is unknown.
std::vector<std::string> host_names(const Rendezvous& rendezvous, int tasks,
                                    const std::set<int>& here) {
  std::string list = environment_variable("SLURM_STEP_NODELIST");
  if (list.empty()) list = environment_variable("SLURM_JOB_NODELIST");
  const std::vector<std::string> hosts = slurm::hosts_of(list);
  const std::string per_node = environment_variable("SLURM_STEP_TASKS_PER_NODE");
  std::vector<std::string> told, known;
  for (int task = 0; task < tasks; ++task) {
    told.push_back(here.contains(task) ? text_of(rendezvous.read("here", task), "host") : "");
    known.push_back(slurm::host_of_task(hosts, per_node, task));
  }
  bool agrees = true;  // false: the tasks are not distributed in blocks
  for (size_t i = 0; i < told.size(); ++i)
    if (!told[i].empty() && told[i] != known[i]) agrees = false;
  for (size_t i = 0; i < told.size(); ++i)
    if (told[i].empty())
      told[i] = agrees && !known[i].empty() ? known[i] : fmt::format("task {}", i);
  return told;
}

struct Verdict {
  std::vector<MachineReport> machines;  // by task
  std::vector<std::string> hosts;       // by task
  std::string exclude;                  // unfit hosts, for sbatch --exclude
  std::vector<std::string> slow;        // "HOST: what will be slow"; such a host is fit
  bool fit() const { return std::ranges::all_of(machines, is_fit); }
};

Verdict assess(const Rendezvous& rendezvous, const FleetDoctorOptions& o, const std::set<int>& here,
               const std::set<int>& examined, const std::set<int>& reported) {
  Verdict verdict;
  verdict.hosts = host_names(rendezvous, o.task.tasks, here);
  for (int task = 0; task < o.task.tasks; ++task) {
    const std::string& host = verdict.hosts[static_cast<size_t>(task)];
    MachineReport machine{host, {}, ""};
    if (std::ranges::count(verdict.hosts, host) > 1) machine.name += "/" + std::to_string(task);
    const json document = rendezvous.read("report", task);
    machine.checks = from_json(member_of(document, "checks"));
    drop_unproven_link_failures(machine.checks, member_of(document, "peers"), reported);
    for (const json& path : member_of(document, "slow"))
      if (path.is_string()) verdict.slow.push_back(machine.name + ": " + path.get<std::string>());
    if (!here.contains(task))
      machine.missing =
          fmt::format("it did not join within {} s; check that the host is up and can access {}",
                      o.config.cluster.join_timeout_ms / 1000, o.folder);
    else if (!examined.contains(task))
      machine.missing = "it joined, but did not finish its checks";
    else if (!reported.contains(task) || machine.checks.empty())
      machine.missing = "it finished its checks, but not those of its links";
    verdict.machines.push_back(std::move(machine));
  }
  compare(verdict.machines);
  std::vector<std::string> names;
  for (size_t i = 0; i < verdict.machines.size(); ++i)
    if (!is_fit(verdict.machines[i]) && slurm::valid_node_name(verdict.hosts[i]))
      names.push_back(verdict.hosts[i]);
  if (!environment_variable("SLURM_JOB_ID").empty())
    verdict.exclude = slurm::merge_node_lists("", names);
  return verdict;
}

/// Prints the table or the JSON. Returns the error line; ok if all hosts are fit.
Status print_verdict(const Verdict& verdict, const FleetDoctorOptions& o) {
  if (o.json) {
    json machines = fleet_json(verdict.machines);
    for (size_t i = 0; i < machines.size(); ++i) {
      machines[i]["task"] = i;
      machines[i]["host"] = verdict.hosts[i];
    }
    const json document = {{"instance", o.task.instance}, {"tasks", o.task.tasks},
                           {"ok", verdict.fit()},         {"exclude", verdict.exclude},
                           {"slow", verdict.slow},        {"machines", std::move(machines)}};
    terminal::print("%s\n", json_text(document, 1).c_str());
  } else {
    terminal::print("%s%s", fleet_table(verdict.machines).c_str(),
                    fleet_complaints(verdict.machines).c_str());
    for (const std::string& path : verdict.slow) terminal::print("slow: %s\n", path.c_str());
    if (verdict.fit())
      terminal::print("all %zu hosts are fit to train; %s\n", verdict.machines.size(),
                      program_facts().c_str());
    else if (!verdict.exclude.empty())
      terminal::print("to leave them out: --exclude=%s\n", verdict.exclude.c_str());
  }
  std::fflush(stdout);
  if (verdict.fit()) return {};
  const auto unfit =
      std::ranges::count_if(verdict.machines, [](const auto& m) { return !is_fit(m); });
  const auto first =
      std::ranges::find_if(verdict.machines, [](const auto& m) { return !is_fit(m); });
  return Status(
      Code::gave_up,
      fmt::format(
          "{} of {} hosts are not fit; {}: {}{}", unfit, verdict.machines.size(), first->name,
          complaint(*first),
          verdict.exclude.empty() ? "" : "; to leave them out: --exclude=" + verdict.exclude));
}

/// Checks this host together with the other tasks. Returns the exit code that all tasks share.
Result<int> examine_host(const FleetDoctorOptions& o) {
  const slurm::Task& task = o.task;
  const std::string host = host_of(task);
  SS_ASSIGN(const Rendezvous rendezvous,
            Rendezvous::join(o.folder, task.task, task.tasks, o.config.cluster.join_timeout_ms));
  Links links(o, rendezvous.folder());
  SS_RETURN_IF_ERROR(rendezvous.publish("here", {{"host", host}, {"address", links.address()}}));
  const std::set<int> here = rendezvous.wait("here", [&](const std::set<int>& late) {
    int lowest = 0;
    while (late.contains(lowest)) ++lowest;
    if (lowest == task.task)
      terminal::error("simplescale: still waiting for %zu of %d tasks, first for task %d\n",
                      late.size(), task.tasks, *late.begin());
  });
  std::vector<CheckResult> results = check_machine(o.folder);
  SS_RETURN_IF_ERROR(rendezvous.publish("machine", json::object()));
  const std::set<int> examined = rendezvous.wait("machine");  // only then are the machines idle
  json peers = json::array();
  std::vector<LinkEnd> ends;
  for (const auto& [peer, end] : links_of(rendezvous, task.task, examined)) {
    peers.push_back(peer);
    ends.push_back(end);
  }
  for (CheckResult& result : links.check(ends)) results.push_back(std::move(result));
  for (CheckResult& result : o.check_inputs())
    if (!result.ok) results.push_back(std::move(result));
  results.push_back({"program", true, 0, "", program_facts()});
  SS_RETURN_IF_ERROR(rendezvous.publish("report", {{"checks", to_json(results)},
                                                   {"peers", std::move(peers)},
                                                   {"slow", slow_paths(read_hardware())}}));
  std::set<int> reported = rendezvous.wait("report");

  const bool mine = rendezvous.claim_conclusion();
  int code = 0;
  if (mine) {
    code = report_status(print_verdict(assess(rendezvous, o, here, examined, reported), o));
    SS_RETURN_IF_ERROR(rendezvous.publish_conclusion({{"code", code}}));
  } else {
    SS_ASSIGN(const json document, rendezvous.wait_conclusion());
    const json& found = member_of(document, "code");
    if (!found.is_number_integer())
      return Status(Code::bad_data, "the conclusion in " + o.folder + " is damaged");
    code = found.get<int>();
  }
  reported.erase(task.task);
  rendezvous.leave(mine, reported);
  if (mine) {  // removes the run's folder if it was created only for the rendezvous
    std::error_code error;
    const std::filesystem::path control = std::filesystem::path(o.folder).parent_path();
    if (control.filename() == "control" && std::filesystem::remove(control, error))
      std::filesystem::remove(control.parent_path(), error);
  }
  return code;
}

}  // namespace

int fleet_doctor(const FleetDoctorOptions& options) {
  // Hides the transport's warnings about peers that end before this task.
  if (environment_variable("SIMPLESCALE_LOG").empty()) log::set_level(log::Level::error);
  auto code = examine_host(options);
  if (code.ok()) return *code;
  const Code as = code.status().code() == Code::io ? Code::io : Code::gave_up;
  return report_status(Status(as, host_of(options.task) + ": " + code.status().message()));
}

}  // namespace simplescale
