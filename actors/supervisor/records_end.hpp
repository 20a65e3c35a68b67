// Finds where the records of a run end. A new supervisor reads that before it appends to them.
//
// No process ever truncates the records: a process that is stopped between reading a size and
// truncating would cut its successor's lines when it wakes. Instead, what a crash left is made
// harmless:
//   - half a line at the end of a file is overwritten with spaces, and the next line follows them;
//   - lines of an incomplete step stay; the supervisor does not write them a second time.
// A supervisor that lost leadership may still append one piece of lines. These lines are of its own
// term and repeat facts; if it leaves half a line, the journal overwrites that. Readers ignore a
// line of a step that is not newer than the newest step before it.
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

/// Identifies a line of metrics.jsonl (then `trainer` is "") or of ledger.jsonl.
struct StepLine {
  uint64_t generation = 0, step = 0;
  std::string trainer;
  auto operator<=>(const StepLine&) const = default;
};
/// The identity of a line; generation and step are 0 if the line has none.
StepLine step_line(const nlohmann::json& line);

/// The validation results in a line of metrics.jsonl or events.jsonl: an object with those of the
/// members `val_loss`, `val_losses`, `val_loss_at`, `val_loss_by_position` and `tasks` that the line has.
nlohmann::json validation_of(const nlohmann::json& line);

/// The last whole step and the last incident in the records of a run.
struct RecordsEnd {
  bool any = false;                   // the records have a step
  uint64_t step = 0, generation = 0;  // the last step, and the generation that made it
  uint64_t incidents = 0;             // number of the last incident
  uint64_t newest_generation = 0;     // that a line names; GEN-2: its number is used
  bool unended = false;  // the newest start has no end in events.jsonl: all its processes died
  double newest_time =
      0;  // of the lines of metrics.jsonl and events.jsonl, seconds since the epoch
  std::set<StepLine> beyond;  // lines of later steps, which are incomplete
  /// validation_of() the lines of the newest validated steps, by step.
  std::map<uint64_t, nlohmann::json> validations;
};
/// The steps in metrics.jsonl and ledger.jsonl, or in the ends of these files.
struct RecordedSteps {
  using Position = std::pair<uint64_t, uint64_t>;  // generation, step: a later position is greater
  std::set<Position> metrics;
  std::map<uint64_t, nlohmann::json> validations;              // the last line of a step counts
  std::map<Position, std::map<std::string, uint64_t>> ledger;  // samples of each trainer
  bool all = true;         // both files were read from their beginning
  double newest_time = 0;  // the newest in metrics.jsonl
};
/// Returns the last step in both files, or without a ledger the last in metrics.jsonl. `any` is
/// false if there is none. said: SupervisorState::recorded_step of the predecessor. Both files had
/// all lines up to that step. So if one file has none, a user has removed it, and the other file
/// counts up to that step. The supervisor writes later lines again; lines whose reports are gone
/// have no loss. Does not set what comes from events.jsonl. Any thread.
RecordsEnd end_of_steps(RecordedSteps steps, bool ledger, const BatchSchedule& batch,
                        uint64_t said);

/// LEAD-1: returns true while this process leads. Error: the term files cannot be read now. Null:
/// counts as always true. Blocks.
using MayWrite = std::function<Result<bool>()>;

/// Most bytes that a journal writes at once, or leaves unsynced in a file. A single longer line may
/// exceed this.
inline constexpr size_t kRecordsWriteMax = 64 << 10;

/// True if several hosts can append to the files of this folder without overwriting each other's
/// lines. False on NFS, where a client appends at the end that it last saw. True for unknown file
/// systems.
bool hosts_can_append(const std::string& folder);
/// LEAD-1, where hosts_can_append() is false: a new leader calls this before it appends. Adds
/// spaces at the end of each record file that has lines. Late writes of the previous leader fall
/// into these spaces: bytes in its page cache, or a write before which it was suspended. may_write:
/// as in end_of_records(). io: a file cannot be written; aborted: may_write returned false. Blocks.
Status leave_gap(const std::string& folder, const MayWrite& may_write = nullptr);

/// Finds out how much of a failed append is in the file: a failed append may be partial. text:
/// whole lines; the first `written` bytes were in the file before. Returns how many bytes of `text`
/// are in the file now. If the file ends otherwise, overwrites half a line at its end with spaces,
/// and returns the begin of the line that contains byte `written`: write that line again.
/// may_write: as below. io; aborted: may_write returned false. Blocks.
Result<size_t> bytes_appended(const std::string& path, std::string_view text, size_t written,
                              const MayWrite& may_write = nullptr);

/// Finds the last step of which metrics.jsonl and the ledger have all lines. ledger: the run keeps
/// ledger.jsonl. may_write: called after a file has been read and before half a line is overwritten
/// (LEAD-1). said: as in end_of_steps(). io: a file cannot be read or written; aborted: may_write
/// returned false. Blocks.
Result<RecordsEnd> end_of_records(const std::string& folder, bool ledger,
                                  const BatchSchedule& batch, const MayWrite& may_write = nullptr,
                                  uint64_t said = 0);

}  // namespace simplescale
