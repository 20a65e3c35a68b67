#include "runtime/checkpoint/run_checkpoints.hpp"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <utility>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/parse_toml.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

/// Contents of FOLDER/owner: the run's id and, for messages, its folder at that time; then the ids of
/// runs that it continues.
struct Owner {
  std::string id, path;
  std::vector<std::string> continues;
};

std::string owner_file(const std::string& folder) {
  return folder + "/owner";
}

std::string id_file(const RunFolder& run) {
  return run.control() + "/id";
}

/// True if the folder is that of the run itself, wherever it was moved to.
bool is_inside(const RunFolder& run, const std::string& folder) {
  std::error_code error;
  return fs::equivalent(folder, run.path + "/checkpoints", error);
}

/// Empty fields if there is no such file.
Result<Owner> read_owner(const std::string& path) {
  Owner owner;
  const auto text = read_text(path);
  if (text.status().code() == Code::not_found) return owner;
  if (!text.ok()) return text.status();
  std::istringstream lines(*text);
  std::getline(lines, owner.id);
  std::getline(lines, owner.path);
  for (std::string id; std::getline(lines, id);) owner.continues.push_back(id);
  return owner;
}

}  // namespace

std::string checkpoints_of(const RunFolder& run) {
  const auto text = read_text(run.config(), kTomlBytesMax);
  if (const auto config = parse_toml(text.ok() ? *text : "", run.config()); config.ok()) {
    const std::string folder =
        path_of_text((*config)["checkpoint"]["folder"].value_or(std::string()));
    if (fs::path(folder).is_absolute()) return folder;
  }
  return run.path + "/checkpoints";
}

Result<bool> was_saved(const RunFolder& run) {
  std::error_code error;
  const fs::file_status events_status = fs::status(run.events(), error);
  if (events_status.type() == fs::file_type::not_found) return false;
  std::ifstream events = open_lines(run.events());
  bool found = false;
  for (std::string line; !found && next_line(events, line);)
    found = line.find("\"checkpoint_saved\"") != std::string::npos;
  if (found) return true;
  if (!events.is_open() || !events.eof())
    return Status(Code::io, "cannot read " + run.events() + ": it may name a checkpoint");
  return false;
}

Status check_never_saved(const RunFolder& run, const std::string& folder) {
  SS_ASSIGN(const bool saved, was_saved(run));
  if (!saved) return {};
  return Status(Code::io, folder + ": there is no checkpoint, but " + run.events() +
                              " names one that was saved: is its file system mounted? If the "
                              "checkpoints were moved: --checkpoint.folder=FOLDER. To begin at "
                              "step 0, start a new run with --run=FOLDER");
}

Status check_checkpoints_owner(const RunFolder& run, const std::string& folder) {
  SS_ASSIGN(Owner owner, read_owner(owner_file(folder)));
  std::error_code error;
  std::string remedy = ", or remove " + owner_file(folder) + " if that run does not exist any more";
  const fs::path holder = fs::path(folder).parent_path();
  if (owner.id.empty() && fs::path(folder).filename() == "checkpoints" &&
      fs::exists(RunFolder{holder.string()}.config(), error) &&
      !fs::equivalent(holder, run.path, error)) {
    owner = {"the run around it", holder.string()};
    remedy.clear();
  }
  if (owner.id.empty()) return {};
  SS_ASSIGN(const Owner ours, read_owner(id_file(run)));
  if (ours.id == owner.id) return {};
  if (ours.id.empty() && fs::exists(run.config(), error) && is_inside(run, folder)) return {};
  return Status(Code::bad_config, "checkpoint.folder: " + folder +
                                      " holds the checkpoints of another run, " + owner.path +
                                      "; give this one its own with --checkpoint.folder=FOLDER" +
                                      remedy);
}

bool has_id(const RunFolder& run) {
  std::error_code error;
  return fs::exists(id_file(run), error);
}

Result<std::string> run_id(const RunFolder& run) {
  SS_ASSIGN(Owner ours, read_owner(id_file(run)));
  if (!ours.id.empty()) return ours.id;
  std::error_code error;
  if (fs::exists(run.config(), error)) {  // control/ was removed: the run stays what it was
    SS_ASSIGN(ours, read_owner(owner_file(run.path + "/checkpoints")));
  }
  if (ours.id.empty()) ours.id = unique_id();
  SS_RETURN_IF_ERROR(write_file_atomic(id_file(run), ours.id + "\n"));
  return ours.id;
}

Status claim_checkpoints(const RunFolder& run, const std::string& folder) {
  SS_RETURN_IF_ERROR(check_checkpoints_owner(run, folder));
  SS_ASSIGN(const std::string ours, run_id(run));
  std::error_code error;
  if (fs::exists(owner_file(folder), error)) return {};
  if (checkpoint_steps(folder).empty()) {  // is its file system mounted?
    SS_ASSIGN(const bool saved, was_saved(run));
    if (saved) return {};
  }
  // Another task of this start tries whether it can write there, and removes the folder if it is empty.
  constexpr int kTries = 100;
  for (int tries = 1;; ++tries) {
    fs::create_directories(folder, error);
    const Status written = write_file_atomic(owner_file(folder), ours + "\n" + run.path + "\n");
    if (written.code() != Code::not_found || tries == kTries) return written;
  }
}

Status continue_checkpoints_of(const std::string& folder, const std::string& run) {
  SS_ASSIGN(const std::vector<std::string> runs, owning_runs(folder));
  if (runs.empty() || run.empty() || std::ranges::find(runs, run) != runs.end()) return {};
  SS_ASSIGN(const std::string text, read_text(owner_file(folder)));
  return write_file_atomic(owner_file(folder), text + run + "\n");
}

Result<std::vector<std::string>> owning_runs(const std::string& folder) {
  SS_ASSIGN(Owner owner, read_owner(owner_file(folder)));
  std::vector<std::string> runs = std::move(owner.continues);
  if (!owner.id.empty()) runs.insert(runs.begin(), owner.id);
  return runs;
}

}  // namespace simplescale
