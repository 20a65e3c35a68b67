// The numerics signature of a run: all that may change a bit of its weights, as one text with a line
// "key = value" for each field, sorted by key, and a hash of it. Two runs with equal signatures, data
// and parents have equal weights after each step. Any thread; pure functions but for
// arithmetic_of_host().
//
//   SIGNATURE-1  A run never goes on with another signature unnoticed: a start with another value of a
//                field is refused, or records the change as an event; ranks that vote together have
//                the same one; every checkpoint names its own.
//
// A field is a key of the schema, or "arithmetic.NAME" for what no key decides. A learning rate that a
// user sets in the console is no field: it is an event, and stands in the checkpoint beside it.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

struct Signature {
  std::map<std::string, std::string> fields;
  std::string text() const;
  Hash128 hash() const;
  bool operator==(const Signature&) const = default;
};

/// What changes bits, but neither is a key nor known when the program is built.
struct Arithmetic {
  bool cuda = false;                            // the trainers' device
  std::string instructions;                     // of CPU trainers; "": not chosen yet
  std::map<std::string, std::string> products;  // chosen_products()
};

/// The config's device, and its instructions, or the best ones of this host.
Arithmetic arithmetic_of_host(const Config& config);

/// plan: of the config, with the configured layout. The layout is a part of it only without
/// train.deterministic.
Signature signature_of(const Config& config, const Plan& plan, const Arithmetic& arithmetic);

/// {"hash","fields"}, as checkpoints and control/manifest.json have it.
nlohmann::json json_of(const Signature& signature);
/// Nothing: there is none, because an earlier version wrote the record.
std::optional<Signature> signature_in(const nlohmann::json& record);

/// What differs between a signature that was recorded and that of a start. A field that was not
/// recorded does not differ: an earlier version did not have it, or it was chosen afterwards. Of
/// another device only arithmetic.device differs, not what the old one alone has.
std::vector<KeyDifference> changed_fields(const Signature& was, const Signature& now);
/// What a start may do with another value of a field.
enum class FieldChange : unsigned char { free, by_name, never };
FieldChange change_of(const std::string& field);
/// True if --change-numerics allows the field's change: one of the names is the field, or what its
/// name begins with: arithmetic.products.
bool allows(const std::vector<std::string>& names, const std::string& field);
/// The names in run.change_numerics.
std::vector<std::string> change_names(const Config& config);
/// bad_config: one of the names is no field that --change-numerics may name; the message says why.
Status check_change_names(const std::vector<std::string>& names);

}  // namespace simplescale
