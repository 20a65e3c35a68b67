// The supervisor's process: started by an agent, but not bound to it, so that the death of either
// leaves the other. It becomes supervisor by claiming the next epoch (runtime/run/epoch.hpp): at
// once if nobody leads, or, as a standby, when it has lost the supervisor whose state it keeps.
#include "app/processes/supervisor_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <caf/all.hpp>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>

#include "actors/clock.hpp"
#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/standby.hpp"
#include "actors/supervisor/supervisor.hpp"
#include "app/processes/actor_process.hpp"
#include "app/processes/http_process.hpp"
#include "app/report.hpp"
#include "app/slurm/job.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/exports/exporter.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/epoch.hpp"
#include "runtime/run/folder_watch.hpp"

namespace simplescale {

namespace {

constexpr int kAliveMs = 1'000;                      // for another supervisor to answer
constexpr int kRefuseMs = 5'000;                     // of telling agents that the run cannot begin
constexpr int kPatienceMs = 10'000;                  // for the disk at the end
constexpr int kReadTries = 5, kReadAgainMs = 2'000;  // of checkpoints, and between two

/// Shared by everything in the process.
struct Process {
  SupervisorOptions options;
  Config config;
  Plan plan;
  std::string tokenizer;
  EpochFiles files;
  caf::actor_system& system;
  Transport& transport;
  RunFolder run() const { return {options.run}; }
};

/// An I/O error may pass; nothing older takes the place of a checkpoint that cannot be read.
Result<FoundCheckpoint> newest_checkpoint(const std::string& folder) {
  auto found = find_newest_valid(folder);
  for (int tries = 1; tries < kReadTries && found.status().code() == Code::io; ++tries) {
    log::warn("{}", found.status().message());
    std::this_thread::sleep_for(std::chrono::milliseconds(kReadAgainMs));
    found = find_newest_valid(folder);
  }
  return found;
}

/// Where the run stands, as far as its folder tells.
Result<JobOptions> job_options(const Process& p, bool takes_over) {
  JobOptions job;
  job.config = p.config;
  job.plan = p.plan;
  job.run = p.run();
  job.node = p.options.node;
  job.tokenizer = p.tokenizer;
  // A run that goes on has no need of the disk's checkpoints; checking them can take minutes.
  if (takes_over) return job;
  auto found = newest_checkpoint(checkpoint_folder(p.config));
  if (found.ok()) {
    for (const std::string& warning : found->warnings)
      job.skipped.push_back(warning + "; the next older checkpoint is used");
    if (found->checkpoint.info().shape != p.plan.shape)
      return Status(Code::bad_config, found->checkpoint.folder() +
                                          " holds another model than the configuration's; give "
                                          "this run a folder of its own with --run=FOLDER");
    if (found->checkpoint.info().step > static_cast<uint64_t>(p.plan.max_steps))
      return Status(Code::bad_config, found->checkpoint.folder() +
                                          " is beyond the configuration's last step, " +
                                          std::to_string(p.plan.max_steps) +
                                          "; give this run a folder of its own with --run=FOLDER");
    job.checkpoint_step = found->checkpoint.info().step;
    job.older_checkpoints = found->older;
  } else if (found.status().code() != Code::not_found) {
    return found.status();
  }
  return job;
}

/// Whether the supervisor of this epoch still lives: it answers, or its heartbeat goes on. That
/// there is no way to it says nothing.
bool lives(const Process& p, const Epoch& epoch) {
  if (p.files.touched_ns(epoch.number) == 0 || epoch.address.empty()) return false;
  if (p.transport.lookup(epoch.address, "supervisor", kAliveMs).ok()) return true;
  const int64_t before = p.files.touched_ns(epoch.number);
  std::this_thread::sleep_for(std::chrono::milliseconds(kBeatIsOverMs));  // a file tells no changes
  return p.files.touched_ns(epoch.number) != before;
}

/// Whether this epoch resigned because of nodes that still vote, of which this is none: one of them
/// leads next.
bool outvoted(const Process& p, const Epoch& epoch) {
  if (p.files.touched_ns(epoch.number) != 0) return false;
  const auto before = p.files.votes(epoch.number);
  if (!before.ok() || before->empty() || before->contains(p.options.node)) return false;
  std::this_thread::sleep_for(std::chrono::milliseconds(kBeatIsOverMs));
  const auto now = p.files.votes(epoch.number);
  return now.ok() && *now != *before;
}

/// The state that the last supervisor left in the run's folder, if it left one.
std::optional<SupervisorState> left_state(const Process& p) {
  auto text = read_text(p.run().state(p.options.instance));
  if (!text.ok()) {
    if (text.status().code() != Code::not_found) log::warn("{}", text.status().message());
    return std::nullopt;
  }
  auto state = decode({reinterpret_cast<const uint8_t*>(text->data()), text->size()});
  if (state.ok()) return state.take();
  log::warn("{}: {}", p.run().state(p.options.instance), state.status().message());
  return std::nullopt;
}

/// What a standby or a new supervisor knows of the one before.
struct Before {
  uint64_t epoch = 0;
  std::optional<SupervisorState> state;
  std::string lost;
  int64_t lost_at_ms = 0;
  bool silent = false;
};

/// The run cannot begin: every agent that comes is told so.
caf::behavior refuse(caf::event_based_actor* self, Shutdown end) {
  self->set_default_handler(caf::drop);
  return {[self, end](const NodeHello&) {
    self->send(caf::actor_cast<caf::actor>(self->current_sender()), end);
  }};
}

Status give_up(const Process& p, uint64_t generation, const Status& why) {
  const nlohmann::json document = {
      {"instance", p.options.instance}, {"exit", exit_code(why.code())}, {"reason", why.message()}};
  Journal(p.options.run, nullptr, kPatienceMs)
      .append("events.jsonl", {{"time", wall_time_s()},
                               {"generation", generation},
                               {"step", 0},
                               {"incident", nullptr},
                               {"phase", nullptr},
                               {"kind", "failed"},
                               {"subject", ""},
                               {"reason", why.message()},
                               {"ms", nullptr}});
  SS_RETURN_IF_ERROR(write_file_atomic(p.run().end(), json_text(document, 1) + "\n"));
  p.transport.publish("supervisor",
                      p.system.spawn(refuse, Shutdown{exit_code(why.code()), why.message()}));
  std::this_thread::sleep_for(std::chrono::milliseconds(kRefuseMs));  // for whoever comes
  return why;
}

/// By configuration; nothing depends on it.
std::unique_ptr<HttpProcess> serve_http(const Process& p, uint64_t epoch) {
  const auto& metrics = p.config.metrics;
  if (metrics.http_port == 0) return nullptr;
  return std::make_unique<HttpProcess>(HttpProcessOptions{
      p.options.run, metrics.http_host, static_cast<int>(metrics.http_port), epoch});
}

/// Others may lead from now on: nothing of this supervisor comes after that, neither a heartbeat
/// nor a record.
void resign(const Process& p, uint64_t epoch, EpochWatch& watch, Journal& journal) {
  watch.lead(0);
  const auto looked = std::make_shared<std::promise<void>>();
  watch.look([looked](const EpochView&) { looked->set_value(); });
  looked->get_future().wait_for(std::chrono::milliseconds(kBeatIsOverMs));
  (void)journal.flush();
  journal.stop();
  if (Status resigned = p.files.resign(epoch); !resigned.ok()) log::warn("{}", resigned.message());
}

/// Claims the next epoch and supervises until the end; 0 at once if somebody else was faster.
Result<int> supervise(const Process& p, Before before) {
  const uint64_t epoch = before.epoch + 1;
  uint64_t generation = before.state ? before.state->job.generation : 0;
  const auto text = read_text(p.run().generation());
  if (text.ok())
    generation = std::max<uint64_t>(generation, std::strtoull(text->c_str(), nullptr, 10));
  else if (text.status().code() != Code::not_found)
    return text.status();  // LEAD-1: a number might be given out again
  SS_ASSIGN(const bool ours,
            p.files.claim({epoch, p.options.node, getpid(), p.transport.address(), generation}));
  if (!ours) {
    log::info("somebody else leads epoch {}", epoch);
    return 0;
  }
  if (!p.files.current()) return 0;
  log::info("supervisor of epoch {}", epoch);
  // LEAD-1: the last one may have lost its standby, or been lost by it, and gone on deciding.
  if (before.epoch > 0)
    if (auto left = left_state(p);
        left && (!before.state || std::pair(left->epoch, left->sequence) >
                                      std::pair(before.state->epoch, before.state->sequence))) {
      generation = std::max(generation, left->job.generation);
      before.state = std::move(left);
    }
  const bool takes_over = before.state.has_value();
  auto to_actor = std::make_shared<std::promise<caf::actor>>();
  auto watch = std::make_shared<EpochWatch>(
      p.files, [actor = to_actor->get_future().share(), epoch](const EpochView& view) {
        // Until it is there, others see its heartbeat.
        if (actor.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
        caf::anon_send(actor.get(),
                       local::EpochSeen{0, view.deposed(epoch), view.newest.number, view.votes});
      });
  watch->lead(epoch);
  watch->every(500);
  auto options = job_options(p, takes_over);
  if (!options.ok()) return give_up(p, generation, options.status());
  JobOptions job = options.take();
  job.last_generation = generation;
  SS_ASSIGN(const RecordsEnd records,
            repair_records(p.options.run, p.config.data.ledger,
                           static_cast<uint64_t>(p.plan.global_batch_size)));
  if (takes_over && records.any) {
    job.recorded_step = records.step;
    job.recorded_generation = records.generation;
  }

  struct End {
    int code;
    std::string reason;
    bool resigns;
  };
  auto end = std::make_shared<std::promise<End>>();
  auto result = end->get_future();
  LeadershipOptions& lead = job.leadership;
  lead.epoch = epoch;
  lead.address = p.transport.address();
  lead.instance = p.options.instance;
  lead.state = std::move(before.state);
  lead.lost = before.lost;
  lead.lost_at_ms = before.lost_at_ms;
  lead.silent = before.silent;
  lead.elected = before.epoch > 0 && p.files.touched_ns(before.epoch) == 0;
  lead.finished = [end](int code, std::string reason, bool resigns) {
    end->set_value({code, std::move(reason), resigns});
  };
  // LEAD-1: also what was queued when this process was stopped is not written by a deposed one.
  const auto leads = [files = p.files, epoch] {
    const auto newest = files.newest();
    return !newest.ok() || (newest->number == epoch && files.current());
  };
  const auto exporter = Exporter::make(p.run(), p.config, leads);
  job.journal = std::make_shared<Journal>(p.options.run, leads, kPatienceMs, [exporter] {
    if (exporter) exporter->wake();
  });
  auto journal = job.journal;
  job.diagnosis_failed = [run = p.options.run](const std::string& host, const std::string& why) {
    return drain_in_slurm(run, host, why);
  };
  lead.watch = watch;
  caf::actor supervisor = p.system.spawn(job_supervisor, std::move(job));
  p.transport.publish("supervisor", supervisor);
  to_actor->set_value(supervisor);

  const auto http = serve_http(p, epoch);
  // Deposed, so to say: there is no run left to lead.
  auto folder_watch = std::make_unique<FolderWatch>(p.run(), [supervisor, run = p.run()] {
    log::error("{}", run_is_gone(run));
    caf::anon_send(supervisor, local::EpochSeen{0, true, 0});
  });

  const auto [code, reason, resigns] = result.get();
  log::info("ends: {}", reason);
  if (resigns) resign(p, epoch, *watch, *journal);
  watch.reset();
  folder_watch.reset();
  caf::anon_send_exit(supervisor, caf::exit_reason::user_shutdown);
  supervisor = nullptr;
  if (exporter && !resigns && journal->flush()) exporter->finish(code);
  return code;
}

/// Claims to be supervisor, unless one lives.
Result<int> claim(const Process& p) {
  SS_ASSIGN(const Epoch newest, p.files.newest());
  if (newest.number > 0 && lives(p, newest)) {
    log::info("the supervisor of epoch {} lives", newest.number);
    return 0;
  }
  if (newest.number > 0 && outvoted(p, newest)) {
    log::info("epoch {} was voted out by other nodes, which lead next", newest.number);
    return 0;
  }
  Before before;
  before.epoch = newest.number;
  before.lost = "its process and its standby have ended";
  before.lost_at_ms = now_ms(p.system.clock());
  before.silent = true;
  return supervise(p, std::move(before));
}

Result<int> stand_by(const Process& p) {
  auto end = std::make_shared<std::promise<Before>>();
  auto result = end->get_future();
  SS_ASSIGN(caf::actor supervisor,
            p.transport.lookup(p.options.standby_of, "supervisor",
                               static_cast<int>(p.config.supervision.silence_ms)));
  auto me = std::make_shared<caf::actor>();
  auto ready = std::make_shared<std::promise<void>>();
  auto is_ready = ready->get_future().share();
  StandbyOptions options;
  options.node = p.options.node;
  options.address = p.transport.address();
  options.watch = std::make_shared<EpochWatch>(p.files, [me, is_ready](const EpochView& view) {
    is_ready.wait();
    caf::anon_send(
        *me, local::LeaderSeen{view.answered, view.current, view.newest.number, view.lives()});
  });
  auto watch = options.watch;
  options.ended = [end, &system = p.system](std::optional<SupervisorState> state,
                                            std::string reason, bool silent) {
    Before before;
    before.epoch = state ? state->epoch : 0;
    before.state = std::move(state);
    before.lost = std::move(reason);
    before.lost_at_ms = now_ms(system.clock());
    before.silent = silent;
    end->set_value(std::move(before));
  };
  const caf::node_id leader = supervisor.node();
  *me = p.system.spawn(standby_actor, supervisor, std::move(options));
  p.transport.on_peer_lost([me = *me, leader](const caf::node_id& node, const std::string& why) {
    if (node == leader) caf::anon_send(me, local::SupervisorLost{why});
  });
  supervisor = nullptr;
  ready->set_value();
  watch->every(500);
  log::info("standby");
  auto folder_watch = std::make_unique<FolderWatch>(p.run(), [me = *me, run = p.run()] {
    caf::anon_send(me, Shutdown{0, run_is_gone(run)});
  });
  Before before = result.get();
  folder_watch.reset();
  watch.reset();
  if (before.state) return supervise(p, std::move(before));
  log::info("ends: {}", before.lost);
  return 0;
}

Result<int> run_supervisor(const SupervisorOptions& o) {
  const RunFolder run{o.run};
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  SS_ASSIGN(const Plan plan, make_plan(loaded.config));
  SS_ASSIGN(const Dataset dataset, open_tokens(loaded.config, plan.shape));
  const auto trace_events = static_cast<size_t>(loaded.config.metrics.trace_events);
  if (Status status = trace::start(trace_events); !status.ok())
    log::warn("no traces: {}", status.message());
  SS_ASSIGN(auto actors, ActorProcess::start(loaded.config, run, o.instance, 2));
  const Process process{o,
                        loaded.config,
                        plan,
                        dataset.tokenizer,
                        EpochFiles(run, o.instance),
                        actors->system(),
                        actors->transport()};
  auto code = o.standby_of.empty() ? claim(process) : stand_by(process);
  actors->transport().stop();
  return code;
}

}  // namespace

int run_supervisor_process(const SupervisorOptions& options) {
  init_logging("supervisor-" + options.node);
  // Its life depends on the run's, not on the terminal's or its agent's.
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  auto code = run_supervisor(options);
  if (code.ok()) return *code;
  log::error("{}", code.status().message());
  return report(code.status());
}

}  // namespace simplescale
