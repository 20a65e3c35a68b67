// Where the records of a run end: what a new supervisor reads before it appends to them.
//
// Nothing is ever cut off the records: a process that is stopped between reading a size and cutting
// would cut lines of its successor when it wakes. What a crash may have left is made harmless:
//   - half a line at the end of a file is overwritten with spaces, which the next line follows;
//   - lines of a step that is not whole stay; the supervisor does not write them a second time.
// A deposed supervisor may still append a piece of lines of its own time, once. Its lines repeat
// facts; the journal overwrites half a line that it leaves. Readers ignore a line of a step that is
// not newer than the newest one before it.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/status.hpp"
#include "runtime/training/batch_schedule.hpp"

namespace simplescale {

/// Names a line of metrics.jsonl (then `trainer` is "") or of ledger.jsonl.
struct StepLine {
  uint64_t generation = 0, step = 0;
  std::string trainer;
  auto operator<=>(const StepLine&) const = default;
};
/// The name of a line; generation and step are 0 if it has none.
StepLine step_line(const nlohmann::json& line);

/// What a line of metrics.jsonl or events.jsonl says of the validation of its step: an object with
/// those of the members `val_loss`, `val_losses` and `tasks` that the line has.
nlohmann::json validation_of(const nlohmann::json& line);

/// The last whole step and the last incident in the records of a run.
struct RecordsEnd {
  bool any = false;                   // there is a step
  uint64_t step = 0, generation = 0;  // the last one, and the generation that made it
  uint64_t incidents = 0;             // number of the last one
  uint64_t newest_generation = 0;     // that a line names; GEN-2: its number is used
  bool unended = false;  // events.jsonl has no end of the newest start: all its processes died
  double newest_time =
      0;  // of the lines of metrics.jsonl and events.jsonl, seconds since the epoch
  std::set<StepLine> beyond;  // lines of later steps, which are not whole
  /// Of the newest steps that were validated, by step: validation_of() their lines.
  std::map<uint64_t, nlohmann::json> validations;
};
/// The steps that metrics.jsonl and ledger.jsonl have, or their ends.
struct RecordedSteps {
  using Position = std::pair<uint64_t, uint64_t>;  // generation, step: later ones are greater
  std::set<Position> metrics;
  std::map<uint64_t, nlohmann::json> validations;              // the last line of a step counts
  std::map<Position, std::map<std::string, uint64_t>> ledger;  // samples of each trainer
  bool all = true;         // both files were read from their beginning
  double newest_time = 0;  // of a line of metrics.jsonl
};
/// Finds the last step that both files have; without a ledger, that metrics.jsonl has. said: as
/// SupervisorState::recorded_step of the predecessor: both had all lines up to that step, so a file
/// that has none was removed by a user, and the other one counts up to there. Later lines are
/// written again: those whose reports are gone have no loss. `any` is false if there is no step.
/// Knows nothing of events.jsonl. Any thread.
RecordsEnd end_of_steps(RecordedSteps steps, bool ledger, const BatchSchedule& batch,
                        uint64_t said);

/// LEAD-1: true while this process leads. An error: that cannot be read now. Null: always true.
/// Blocks.
using MayWrite = std::function<Result<bool>()>;

/// Bytes that a journal writes at once, and has in a file without a sync. A longer line is an
/// exception.
inline constexpr size_t kRecordsWriteMax = 64 << 10;

/// True if no host's appends to the files of this folder overwrite those of another host. False on
/// NFS, where each client appends at the end that it knows of. Unknown file systems: true.
bool hosts_can_append(const std::string& folder);
/// LEAD-1, where hosts_can_append() is false: puts spaces at the end of each record file that has
/// lines, before a new leader appends. What a deposed leader writes late lies in these spaces:
/// bytes in its page cache, or the write before which it was suspended. may_write: as in
/// end_of_records(). io: a file cannot be written; aborted: may_write returned false. Blocks.
Status leave_gap(const std::string& folder, const MayWrite& may_write = nullptr);

/// An append to a file failed, and may have written a part of its bytes all the same. text: whole
/// lines, of which the first `written` bytes were in the file before. Returns how many are there
/// now. If the file ends otherwise, half a line at its end is overwritten with spaces, and the line
/// that `written` lies in is to be written again from its beginning. may_write: as below. io;
/// aborted: may_write returned false. Blocks.
Result<size_t> bytes_appended(const std::string& path, std::string_view text, size_t written,
                              const MayWrite& may_write = nullptr);

/// Finds the last step of which metrics.jsonl and the ledger have all lines. ledger: the run keeps
/// ledger.jsonl. may_write is asked after a file has been read and before half a line is
/// overwritten (LEAD-1). said: as in end_of_steps(). io: a file cannot be read or written; aborted:
/// may_write returned false. Blocks.
Result<RecordsEnd> end_of_records(const std::string& folder, bool ledger,
                                  const BatchSchedule& batch, const MayWrite& may_write = nullptr,
                                  uint64_t said = 0);

}  // namespace simplescale
