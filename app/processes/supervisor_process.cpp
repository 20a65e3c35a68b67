// The process of a supervisor or of a standby. An agent starts it, but neither dies with the other.
// The process becomes supervisor when it claims the next term (runtime/run/term.hpp). It claims at
// once if no supervisor leads. A standby claims after it has lost the supervisor whose state it
// replicates.
#include "app/processes/supervisor_process.hpp"

#include <signal.h>

#include <caf/all.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "actors/clock.hpp"
#include "actors/supervisor/claim.hpp"
#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/standby.hpp"
#include "actors/supervisor/step_down.hpp"
#include "actors/supervisor/supervisor.hpp"
#include "app/processes/actor_process.hpp"
#include "app/processes/http_process.hpp"
#include "app/processes/prepare_supervisor.hpp"
#include "app/report.hpp"
#include "app/slurm/job.hpp"
#include "runtime/base/log.hpp"
#include "runtime/observe/notifier.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/folder_watch.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/run/run_state.hpp"
#include "runtime/run/term.hpp"
#include "tools/exports/exporter.hpp"

namespace simplescale {

namespace {

constexpr int kRefusalMs = 5'000;  // how long agents are told that the run cannot begin
constexpr int kTermPollMs = 500;   // between two reads of the term files

using supervisor::Claim, supervisor::Candidate, supervisor::Predecessor;
using supervisor::kFlushTimeoutMs, supervisor::leads;

/// Shared by all functions of this file; lives as long as the process.
struct Process : SupervisedRun {
  caf::actor_system& system;
  Transport& transport;
};

/// This process as a candidate.
Candidate candidate(const Process& p) {
  return {.run = p.run(),
          .instance = p.options.instance,
          .node = p.options.node,
          .address = p.transport.address(),
          .files = p.files,
          .join_timeout_ms = p.config.cluster.join_timeout_ms,
          .supervisor_answers = [&transport = p.transport](const std::string& address) {
            return transport.lookup(address, "supervisor", kLookupMs).ok();
          }};
}

/// An actor that takes the supervisor's place and tells every agent to end, because the run cannot
/// begin.
caf::behavior refuse(caf::event_based_actor* self, Shutdown end) {
  self->set_default_handler(caf::drop);
  return {[self, end](const NodeHello&) {
    self->send(caf::actor_cast<caf::actor>(self->current_sender()), end);
  }};
}

/// Null without supervision.notify.
std::shared_ptr<Notifier> make_notifier(const Process& p) {
  const std::string& target = p.config.supervision.notify;
  return target.empty() ? nullptr : std::make_shared<Notifier>(target);
}

void notify(Notifier& notifier, const std::string& run, nlohmann::json event) {
  event["run"] = run;
  notifier.send(std::move(event));
}

/// Records that the run cannot continue, and refuses agents for kRefusalMs: they end with the
/// reason, even if it cannot be recorded. Returns `why`.
Status refuse_agents(const Process& p, uint64_t term, uint64_t generation, const Status& why) {
  const RunEnd end{exit_code(why.code()), why.message(), p.options.instance, term};
  const nlohmann::json event = supervisor::event_of("failed", "", generation, why);
  {
    Journal journal(p.options.run, leads(p.files, term), kFlushTimeoutMs);
    journal.append("events.jsonl", event);
    journal.replace("control/end.json", end_text(end));
  }
  const auto notifier = make_notifier(p);
  if (notifier) notify(*notifier, p.options.run, event);
  p.transport.publish("supervisor",
                      p.system.spawn(refuse, Shutdown{exit_code(why.code()), why.message()}));
  std::this_thread::sleep_for(std::chrono::milliseconds(kRefusalMs));  // meanwhile agents join
  return why;
}

/// Null if metrics.http_port is 0. The run does not depend on the HTTP process.
std::unique_ptr<HttpProcess> serve_http(const Process& p, uint64_t term) {
  const auto& metrics = p.config.metrics;
  if (metrics.http_port == 0) return nullptr;
  return std::make_unique<HttpProcess>(
      HttpProcessOptions{p.options.run, metrics.http_host, checkpoint_folder(p.config),
                         static_cast<int>(metrics.http_port), term});
}

/// Touches the term's file, and sends the supervisor actor the contents of the term files.
std::shared_ptr<TermWatch> lead_term(const Process& p, uint64_t term,
                                     std::shared_future<caf::actor> supervisor) {
  auto watch = std::make_shared<TermWatch>(
      p.files, [supervisor = std::move(supervisor), term](const TermView& view) {
        // Until the actor exists, only the heartbeat shows that this process leads.
        if (supervisor.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
        caf::anon_send(supervisor.get(), term_seen(0, term, view));
      });
  watch->lead(term);
  watch->poll_every(kTermPollMs);
  return watch;
}

/// How the supervisor actor ended.
struct SupervisorEnd {
  int code;
  std::string reason;
  bool resigns;
};

LeadershipOptions leadership_options(const Process& p, uint64_t term, Predecessor before,
                                     std::shared_ptr<TermWatch> watch,
                                     std::shared_ptr<std::promise<SupervisorEnd>> end) {
  LeadershipOptions lead;
  lead.term = term;
  lead.address = p.transport.address();
  lead.instance = p.options.instance;
  lead.state = std::move(before.state);
  lead.lost = before.lost;
  lead.lost_at_ms = before.lost_at_ms;
  lead.silent = before.silent;
  lead.stood_by = before.stood_by;
  const auto touched = p.files.touched_ns(before.term);
  lead.elected = before.term > 0 && touched.ok() && *touched == 0;
  lead.watch = std::move(watch);
  lead.finished = [end = std::move(end)](int code, std::string reason, bool resigns) {
    end->set_value({code, std::move(reason), resigns});
  };
  return lead;
}

/// Claims the next term and supervises until the end. Returns 0 at once if another process claimed
/// the term first. JOB-1: if a file cannot be read, this process resigns and another one leads,
/// except in the first term, in which no memory holds a step. Any other failure after the claim
/// ends the run: if the term just ended, the next one would fail in the same way, for ever.
Result<int> supervise(const Process& p, Predecessor before) {
  const uint64_t term = before.term + 1;
  const Candidate me = candidate(p);
  SS_ASSIGN(Claim claim, claim_next(me, before));
  if (!claim.ours) {
    log::info("another process leads term {}", term);
    return 0;
  }
  uint64_t generation = claim.generation;
  Status known = claim.known;
  log::info("supervisor of term {}", term);
  std::promise<caf::actor> to_watch;
  auto watch = lead_term(p, term, to_watch.get_future().share());
  // The predecessor may have decided until the claim, so read again.
  if (known.ok()) known = read_known(me, before, generation);
  const SupervisorState* from = before.state ? &*before.state : nullptr;
  auto prepared =
      known.ok() ? prepare_supervisor(p, term, generation, from) : Result<JobOptions>(known);
  const auto still_leads = leads(p.files, term);
  const auto led = with_retries(me.read_retries, still_leads);
  if (led.ok() && !*led) {  // LEAD-1: this process may have been stopped meanwhile
    log::warn("another supervisor leads since this one prepared");
    return 0;
  }
  const Status& failed = led.ok() ? prepared.status() : led.status();
  // Only a standby may have a newer state than the folder. Another process would hide a page that
  // it has not found.
  if (failed.code() == Code::io && term > 1)
    return resign_unprepared(me, term, generation, before.stood_by ? from : nullptr, *watch,
                             failed);
  if (!failed.ok()) return refuse_agents(p, term, generation, failed);
  JobOptions job = prepared.take();
  // The records may name generations of the predecessor that its term file does not name.
  job.generation_floor = job::generation_floor_of(term, claim.above, job.last_generation);
  auto end = std::make_shared<std::promise<SupervisorEnd>>();
  auto result = end->get_future();
  job.leadership = leadership_options(p, term, std::move(before), watch, std::move(end));
  const auto exporter = Exporter::make(p.run(), p.config, [still_leads] {
    const auto leads = still_leads();
    return !leads.ok() || *leads;
  });
  job.journal = std::make_shared<Journal>(p.options.run, still_leads, kFlushTimeoutMs, [exporter] {
    if (exporter) exporter->wake();
  });
  auto journal = job.journal;
  job.diagnosis_failed = [run = p.options.run](const std::string& host, const std::string& why) {
    return drain_in_slurm(run, host, why);
  };
  const auto notifier = make_notifier(p);
  if (notifier)
    job.notify = [notifier, run = p.options.run](const nlohmann::json& event) {
      notify(*notifier, run, event);
    };
  caf::actor supervisor = p.system.spawn(job_supervisor, std::move(job));
  p.transport.publish("supervisor", supervisor);
  to_watch.set_value(supervisor);

  const auto http = serve_http(p, term);
  // Without its folder the run has ended: the actor ends as if a newer supervisor led.
  auto folder_watch = std::make_unique<FolderWatch>(p.run(), [supervisor, run = p.run()] {
    log::error("{}", run_gone_message(run));
    caf::anon_send(supervisor, local::TermSeen{0, true, 0});
  });

  const auto [code, reason, resigns] = result.get();
  log::info("supervisor ends: {}", reason);
  if (resigns) supervisor::resign(p.files, term, *watch, *journal);
  watch.reset();
  folder_watch.reset();
  caf::anon_send_exit(supervisor, caf::exit_reason::user_shutdown);
  supervisor = nullptr;
  if (notifier) notifier->finish();
  if (exporter && !resigns && journal->flush()) exporter->finish(code);
  return code;
}

/// Becomes supervisor, unless a supervisor is alive, or other nodes have voted and one of them
/// leads next.
Result<int> claim_leadership(const Process& p) {
  SS_ASSIGN(const Term newest, p.files.newest());
  if (newest.number > 0) {
    SS_ASSIGN(const bool alive, is_alive(candidate(p), newest));
    if (alive) {
      log::info("not needed: the supervisor of term {} is alive", newest.number);
      return 0;
    }
    SS_ASSIGN(const bool voted_out, was_voted_out(candidate(p), newest));
    if (voted_out) {
      log::info("not needed: other nodes voted out term {}, one of them leads next", newest.number);
      return 0;
    }
  }
  Predecessor before;
  before.term = newest.number;
  before.lost = reason_of(ReasonKind::both_ended, "its process and its standby have ended");
  before.lost_at_ms = now_ms(p.system.clock());
  before.silent = true;
  return supervise(p, std::move(before));
}

/// Replicates the state of the supervisor at standby_of until that supervisor is lost. Then
/// supervises. Returns 0 if the run ends first.
Result<int> stand_by(const Process& p) {
  auto end = std::make_shared<std::promise<Predecessor>>();
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
  options.watch = std::make_shared<TermWatch>(p.files, [me, is_ready](const TermView& view) {
    is_ready.wait();
    caf::anon_send(*me, local::LeaderSeen{view.answered, view.current, view.newest.number,
                                          view.leader_alive()});
  });
  auto watch = options.watch;
  options.ended = [end, &system = p.system](std::optional<SupervisorState> state, Reason reason,
                                            bool silent) {
    Predecessor before;
    before.term = state ? state->term : 0;
    before.state = std::move(state);
    before.lost = std::move(reason);
    before.lost_at_ms = now_ms(system.clock());
    before.silent = silent;
    before.stood_by = true;
    end->set_value(std::move(before));
  };
  *me = p.system.spawn(standby_actor, supervisor, std::move(options));
  supervisor = nullptr;
  ready->set_value();
  watch->poll([files = p.files, node = p.options.node](const TermView&) {
    if (Status room = files.keep_room(node, getpid()); !room.ok())
      log::warn("on a full disk this standby cannot claim: {}", room.message());
  });
  watch->poll_every(kTermPollMs);
  log::info("standby of {}", p.options.standby_of);
  auto folder_watch = std::make_unique<FolderWatch>(p.run(), [me = *me, run = p.run()] {
    caf::anon_send(me, Shutdown{0, run_gone_message(run)});
  });
  Predecessor before = result.get();
  folder_watch.reset();
  watch.reset();
  if (before.state) return supervise(p, std::move(before));
  log::info("standby ends: {}", before.lost.text);
  return 0;
}

Result<int> run_supervisor(const SupervisorOptions& o) {
  const RunFolder run{o.run};
  SS_RETURN_IF_ERROR(keep_others_out(run));
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  SS_ASSIGN(const Plan plan, make_plan(loaded.config));
  SS_ASSIGN(const RunData data, open_tokens(loaded.config, plan.shape));
  const auto trace_events = static_cast<size_t>(loaded.config.metrics.trace_events);
  if (Status status = trace::start(trace_events); !status.ok())
    log::warn("no traces: {}", status.message());
  SS_ASSIGN(auto actors, ActorProcess::start(loaded.config, run, o.instance, 2));
  const Process process{{o, loaded.config, plan, data, TermFiles(run, o.instance)},
                        actors->system(),
                        actors->transport()};
  auto code = o.standby_of.empty() ? claim_leadership(process) : stand_by(process);
  actors->transport().stop();
  return code;
}

}  // namespace

int run_supervisor_process(const SupervisorOptions& options) {
  init_logging("supervisor-" + options.node);
  // Signals to the process group of the terminal or of the agent must not end the supervisor.
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  auto code = run_supervisor(options);
  if (code.ok()) return *code;
  log::error("{}", code.status().message());
  return report_status(code.status());
}

}  // namespace simplescale
