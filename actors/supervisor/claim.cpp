#include "actors/supervisor/claim.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "runtime/base/files.hpp"
#include "runtime/base/log.hpp"
#include "runtime/run/agent_lock.hpp"

namespace simplescale::supervisor {

namespace {

constexpr std::chrono::milliseconds kHeartbeatTimeout{kHeartbeatTimeoutMs};

/// The highest generation that a supervisor of this run has used. LEAD-1: an error if it cannot be
/// read, because no number may be used twice.
Result<uint64_t> highest_generation(const Candidate& c, const Predecessor& before) {
  const uint64_t known = before.state ? before.state->job.generation : 0;
  const auto text = with_retries(c.read_retries, [&] { return read_text(c.run.generation()); });
  if (text.status().code() == Code::not_found) return known;
  if (!text.ok()) return text.status();
  char* end = nullptr;
  const uint64_t given_out = std::strtoull(text->c_str(), &end, 10);
  if (end == text->c_str() || std::string_view(end) != "\n")
    return Status(Code::bad_data,
                  c.run.generation() +
                      " holds no number; write one into it that is greater than every "
                      "\"generation\" in " +
                      c.run.events());
  return std::max(known, given_out);
}

/// Claims the term after that of `before`, once. io: a file cannot be read or written.
Result<Claim> claim_once(const Candidate& c, Predecessor& before) {
  Claim claim;
  Term mine{before.term + 1, c.node, getpid(), c.address, 0};
  if (before.state)  // JOB-1: a standby's; other processes have perhaps only an older one
    claim.generation = before.state->job.generation;
  else
    claim.known = read_known(c, before, claim.generation);
  if (claim.known.code() == Code::io) return claim.known;
  SS_ASSIGN(const Term newest, c.files.newest());
  mine.generation = newest.generation;
  if (newest == mine) {  // an earlier claim succeeded although it returned an error
    claim.ours = true;
  } else {
    mine.generation =
        job::claimed_generation_floor(mine.number, newest.generation, claim.generation);
    SS_ASSIGN(claim.ours, c.files.claim(mine));
  }
  claim.above = mine.generation;
  return claim;
}

}  // namespace

MayWrite leads(TermFiles files, uint64_t term) {
  return [files = std::move(files), term] { return files.leads(term); };
}

Result<bool> is_alive(const Candidate& c, const Term& term) {
  SS_ASSIGN(const int64_t first, c.files.touched_ns(term.number));
  if (first == 0) return false;
  // A damaged file has no address.
  if (!term.address.empty() && c.supervisor_answers(term.address)) return true;
  SS_ASSIGN(const int64_t before, c.files.touched_ns(term.number));
  c.pause(kHeartbeatTimeout);  // polls: a shared file
  SS_ASSIGN(const int64_t now, c.files.touched_ns(term.number));
  return now != before;
}

Result<bool> was_voted_out(const Candidate& c, const Term& term) {
  SS_ASSIGN(const int64_t touched, c.files.touched_ns(term.number));
  if (touched != 0) return false;
  SS_ASSIGN(const auto before, c.files.votes(term.number));
  if (before.empty() || before.contains(c.node)) return false;
  c.pause(kHeartbeatTimeout);  // polls: shared files
  SS_ASSIGN(const auto now, c.files.votes(term.number));
  return now != before;
}

Status read_known(const Candidate& c, Predecessor& before, uint64_t& generation) {
  SS_ASSIGN(const uint64_t highest, highest_generation(c, before));
  generation = std::max(generation, highest);
  SS_ASSIGN(auto left, with_retries(c.read_retries, [&] {
              return read_left_state(c.run.path, c.instance, before.term);
            }));
  if (!left || (before.state && !is_newer(*left, *before.state))) return {};
  generation = std::max(generation, left->job.generation);
  before.state = std::move(left);
  return {};
}

bool ClaimDeadline::lasts() const {
  return std::chrono::steady_clock::now() <= until_ || agents_may_live(run_);
}

Result<Claim> claim_next(const Candidate& c, Predecessor& before) {
  const ClaimDeadline patience(c);
  bool said = false;
  while (true) {
    auto claim = claim_once(c, before);
    if (claim.status().code() != Code::io || !before.stood_by) return claim;
    if (!patience.lasts()) return claim;
    if (!std::exchange(said, true))
      log::warn("cannot claim term {}, trying again while agents may live: {}", before.term + 1,
                claim.status().message());
    c.pause(kTryAgain);  // polls: shared files
    // A supervisor that was only stopped continues to lead, with a newer state than this process
    // has.
    const auto newest = c.files.newest();
    if (!newest.ok()) continue;
    const auto alive = is_alive(c, *newest);
    if (alive.ok() && *alive) return Claim{};
  }
}

}  // namespace simplescale::supervisor
