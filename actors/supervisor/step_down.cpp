#include "actors/supervisor/step_down.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "runtime/base/log.hpp"

namespace simplescale::supervisor {

namespace {

/// JOB-1: waits until the newest state is on the disk. A disk that refuses it now may take it
/// later.
void wait_until_written(const Candidate& c, uint64_t term, Journal& journal) {
  const ClaimDeadline patience(c);
  while (!journal.flush()) {
    const auto leads = c.files.leads(term);
    if ((leads.ok() && !*leads) || !patience.lasts()) return;
    c.pause(kTryAgain);  // polls: a shared file system
  }
}

}  // namespace

nlohmann::json event_of(const std::string& kind, const std::string& subject, uint64_t generation,
                        const Status& why) {
  return {{"time", wall_time_s()}, {"generation", generation}, {"step", 0},
          {"incident", nullptr},   {"phase", nullptr},         {"kind", kind},
          {"subject", subject},    {"reason", why.message()},  {"ms", nullptr}};
}

void resign(const TermFiles& files, uint64_t term, TermWatch& watch, Journal& journal) {
  watch.lead(0);
  const auto stopped = std::make_shared<std::promise<void>>();
  watch.poll([stopped](const TermView&) { stopped->set_value(); });
  stopped->get_future().wait_for(std::chrono::milliseconds(kHeartbeatTimeoutMs));
  (void)journal.flush();
  journal.stop();
  if (Status resigned = files.resign(term); !resigned.ok()) log::warn("{}", resigned.message());
}

Status resign_unprepared(const Candidate& c, uint64_t term, uint64_t generation,
                         const SupervisorState* state, TermWatch& watch, const Status& why) {
  Journal journal(c.run.path, leads(c.files, term), kFlushTimeoutMs);
  if (state) {
    const std::vector<uint8_t> bytes = encode(*state);
    journal.replace(state_page(c.instance, term), std::string(bytes.begin(), bytes.end()));
    wait_until_written(c, term, journal);
  }
  journal.append("events.jsonl", event_of("resigned", c.node, generation, why));
  resign(c.files, term, watch, journal);
  return why;
}

}  // namespace simplescale::supervisor
