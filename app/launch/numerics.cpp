#include "app/launch/numerics.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "actors/supervisor/run_signature.hpp"
#include "app/launch/begin_from.hpp"
#include "app/launch/command_line.hpp"
#include "app/launch/run_start.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"
#include "runtime/config/schema.hpp"

namespace simplescale {
namespace {

/// CheckpointInfo::resume of the newest checkpoint; "{}" without one.
std::string newest_facts(const Config& config) {
  const auto found = find_newest_valid(checkpoint_folder(config), Verify::sizes);
  return found.ok() ? found->checkpoint.info().resume : "{}";
}

/// What the run's newest start has recorded and, of fields that it did not know yet, what the newest
/// checkpoint says: GPUs choose algorithms in the first step. Empty: an earlier version trained the
/// run, or it is new.
Signature recorded(const RunFolder& run, const std::string& facts) {
  Signature known = recorded_signature(run).value_or(Signature());
  if (const auto of_checkpoint = signature_in(signature_record_in(facts)))
    known.fields.insert(of_checkpoint->fields.begin(), of_checkpoint->fields.end());
  return known;
}

/// What a new run does otherwise than its parent, whose steps it continues.
std::vector<ConfigChange> changes_of_parent(const std::string& facts, const Signature& now) {
  std::vector<ConfigChange> changes;
  const auto parent = signature_in(member_of(parse_json(facts), kParentSignatureFact));
  for (const KeyDifference& d : changed_fields(parent.value_or(Signature()), now))
    if (change_of(d.key) == FieldChange::by_name)
      changes.push_back({d.key, "was " + d.was + " in run.from and is " + d.now + " in this run"});
  return changes;
}

}  // namespace

std::string how_to_change(const std::vector<KeyDifference>& differences) {
  std::string names;
  for (const KeyDifference& d : differences) {
    if (change_of(d.key) != FieldChange::by_name) return "";
    names += (names.empty() ? "" : ",") + d.key;
  }
  return "to go on with other bits, add --change-numerics=" + names;
}

Result<std::vector<ConfigChange>> numerics_changes(const RunFolder& run, const Config& config,
                                                   const Plan& plan, uint64_t step) {
  std::error_code error;
  const bool begun = std::filesystem::exists(run.config(), error);
  if (!begun && !has_id(run)) return std::vector<ConfigChange>();  // checkpoints are a stranger's
  const Signature now = signature_of_run(run, config, plan);
  const std::string facts = newest_facts(config);
  const Signature was = recorded(run, facts);
  std::vector<ConfigChange> changes;
  const std::string from_here = " from " + std::to_string(step + 1) + " on";
  if (was.fields.empty()) {
    if (!begun) return changes_of_parent(facts, now);
    changes.push_back({"signature", "is kept for the steps" + from_here + ": " + now.hash().hex() +
                                        "; the version that has trained this run so far kept "
                                        "none"});
    return changes;
  }
  const std::vector<std::string> names = change_names(config);
  std::vector<KeyDifference> refused;
  const std::vector<KeyDifference> changed = changed_fields(was, now);
  for (const KeyDifference& d : changed) {
    if (begun && schema::find(d.key)) continue;  // diff() tells it
    const bool allowed = allows(names, d.key);
    if (d.key == "arithmetic.instructions" && !allowed) continue;  // check_instructions() decides
    if (!allowed && change_of(d.key) != FieldChange::free)
      refused.push_back(d);
    else
      changes.push_back({d.key, text_of(d) + (allowed ? kAllowedByName : "")});
  }
  if (!refused.empty()) {
    const std::string how = how_to_change(refused);
    return Status(Code::bad_config,
                  shown_path(run.path) +
                      " has another numerics signature: " + joined_text(refused) +
                      "; its next steps would have other bits than those so far; to keep the "
                      "bits, resume it with the program and on the devices of before" +
                      (how.empty() ? "" : "; " + how));
  }
  if (!changed.empty())
    changes.push_back({"signature", "was " + was.hash().hex() + " and is now " + now.hash().hex() +
                                        ": steps" + from_here +
                                        " have other bits than with the old one"});
  return changes;
}

}  // namespace simplescale
