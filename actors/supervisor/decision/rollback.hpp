// Rollbacks: a generation rolls back steps of which a shard has no copy left. A rollback is
// tentative until that generation has made a step: if copies come back before, they count again
// (JOB-1). Functions of the state; any thread.
#pragma once

#include <functional>
#include <optional>
#include <set>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

/// True if replicas differed in the state of `step` that `generation` made.
bool is_suspect(const State& state, uint64_t step, uint64_t generation);
/// True if the rollback concerns states that `generation` made.
bool undoes(const Rollback& rollback, uint64_t generation);
/// The current branch. An abandoned branch can become current until its rollback is confirmed, that
/// is, while the rollback is tentative (JOB-1).
inline constexpr uint64_t newest_branch = UINT64_MAX;
/// True if the rollback has to be reverted to make that branch current.
bool reverted(const Rollback& rollback, uint64_t branch);
/// True if the state of `step` that `generation` made does not belong to that branch (JOB-3).
bool undone(const State& state, uint64_t step, uint64_t generation,
            uint64_t branch = newest_branch);
/// True if a rollback ever covered this state, even if the step was regained since. The publisher
/// then set its checkpoint aside, if there was one.
bool set_aside(const State& state, uint64_t step, uint64_t generation);
/// True if a generation may begin with a copy of this state: it belongs to the branch, and replicas
/// did not differ in it.
bool trusted(const State& state, uint64_t step, uint64_t generation,
             uint64_t branch = newest_branch);
/// Confirms all rollbacks, because a step was made since the newest one.
void settle_rollbacks(State& state);
/// JOB-3: a predecessor may have begun generations of which this supervisor's state does not tell. Notes
/// that one rolled back the oldest step of which a copy is known that it did not begin with. With which older step it
/// began is unknown, unless a copy tells that.
void note_lost_rollbacks(State& state);
/// The newest generation that trainers joined. decide() has handled the faults of older
/// generations.
uint64_t newest_joined(const State& state);
/// Rolls back what generations older than State::generation made of `step` and later steps.
void roll_back_from(State& state, uint64_t step);
/// True if a copy is known of a step that the newest generation made (JOB-3).
bool step_was_made(const State& state);
/// Abandoned branches that can become current, the newest first: a known copy belongs to them, and
/// their rollbacks are tentative. Empty if a step was made since.
using Branches = std::set<uint64_t, std::greater<>>;
Branches left_branches(const State& state);
/// Makes an abandoned branch current: reverts the rollbacks that left it, and tentatively rolls
/// back what was made since.
void revert_rollbacks(State& state, uint64_t branch);
/// Returns the newest step that is still committed. The records end with `step`, made in
/// `generation`. They keep steps that were rolled back until the steps are made again.
uint64_t committed_of(const State& state, uint64_t step, uint64_t generation);
/// Returns the newest step of the current branch in the records, after which a new supervisor
/// continues them; nothing if no generation has begun. last: the last whole step in the files, if
/// there is one. said: SupervisorState::recorded_step of the predecessor, if known.
std::optional<uint64_t> recorded_of(const State& state, const std::optional<StateVersion>& last,
                                    std::optional<uint64_t> said);

}  // namespace simplescale::job
