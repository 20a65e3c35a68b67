#include "runtime/config/signature.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/base/instruction_set.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/training/arithmetic.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {
namespace {

using schema::Matters;

constexpr const char* kPrefix = "arithmetic.";

/// One value for all that a key can say of the same bits: a place only says that something lies there.
std::string value_of(const schema::Key& key, const Config& config) {
  const schema::Ref value = key.in(config);
  if (key.matters != Matters::place) return schema::to_toml(value);
  return std::get<std::string*>(value)->empty() ? "none" : "set";
}

void add_keys(const Config& given, const Plan& plan, std::map<std::string, std::string>& fields) {
  Config config = comparable(given);
  for (BlendSource& source : config.data.blend) source.source = source.folder = "";
  config.data.skip_samples = plan.skipped.text();
  config.train.warmup_steps = plan.learning_rate.warmup_steps;
  for (const schema::Key& key : schema::keys()) {
    if (key.matters == Matters::never) continue;
    if (key.matters == Matters::layout && config.train.deterministic) continue;
    fields[key.full_name()] = value_of(key, config);
  }
  // What they come to is in max_steps and warmup_steps, in every layout.
  for (const char* counted : {"max_tokens", "max_iters", "warmup_tokens", "warmup_iters"})
    fields.erase(std::string("train.") + counted);
}

void add_arithmetic(const Config& config, const Plan& plan, const Arithmetic& of,
                    std::map<std::string, std::string>& fields) {
  namespace a = arithmetic;
  const auto add = [&fields](const std::string& name, const auto& value) {
    fields[kPrefix + name] = fmt::format("{}", value);
  };
  add("version", a::kVersion);
  add("leaf", "micro-batch");
  add("seq_chunks", 1);
  add("sum_blocks", 1);
  add("tied_gradients", a::kTiedGradients);
  add("shard_align", kShardAlign);
  add("device", of.cuda ? "cuda" : "cpu");
  add("libtorch", SIMPLESCALE_TORCH);  // with MKL, cuDNN and cuBLASLt
  if (config.train.fp8) add("fp8_block", a::kFp8Block);
  if (config.train.optimizer == Optimizer::muon)
    add("muon", fmt::format("{} steps of {} {} {}, epsilon {}", a::kMuonSteps, a::kMuonA, a::kMuonB,
                            a::kMuonC, a::kMuonEpsilon));
  if (of.cuda) {
    add("part_bytes", a::kPartBytes);
    for (const auto& [product, algorithm] : of.products) add("products." + product, algorithm);
    return;
  }
  add("compiler", __VERSION__);
  add("rows", a::kRows);
  add("head_rows", a::kHeadRows);
  add("query_rows", a::kQueryRows);
  add("weight_rows", a::kWeightRows);
  add("weight_tokens", a::kWeightTokens);
  add("logit_bytes", a::kLogitBytes);
  add("packed_bytes", a::kPackedBytes);
  add("packed_rows", a::kPackedRows);
  if (plan.shape.experts.count > 0) {
    add("expert_rows", a::kExpertRows);
    add("router_losses", a::kRouterLosses);
  }
  if (config.train.optimizer == Optimizer::muon)
    add("muon_rows", fmt::format("{} {}, sums of {}", a::kMuonGramRows, a::kMuonProductRows,
                                 a::kMuonNormElements));
  if (!of.instructions.empty()) add("instructions", of.instructions);
}

}  // namespace

std::string Signature::text() const {
  std::string text;
  for (const auto& [key, value] : fields) text += key + " = " + value + "\n";
  return text;
}

Hash128 Signature::hash() const {
  const std::string all = text();
  return hash128(all.data(), all.size());
}

Arithmetic arithmetic_of_host(const Config& config) {
  const InstructionSet set = config.cluster.instructions;
  return {config.cluster.device == DeviceKind::cuda,
          to_string(set == InstructionSet::automatic ? best_instructions() : set),
          {}};
}

Signature signature_of(const Config& config, const Plan& plan, const Arithmetic& arithmetic) {
  Signature signature;
  add_keys(config, plan, signature.fields);
  add_arithmetic(config, plan, arithmetic, signature.fields);
  return signature;
}

nlohmann::json json_of(const Signature& signature) {
  return {{"hash", signature.hash().hex()}, {"fields", signature.fields}};
}

std::optional<Signature> signature_in(const nlohmann::json& record) {
  const nlohmann::json& fields = member_of(record, "fields");
  if (!fields.is_object()) return {};
  Signature signature;
  for (const auto& [key, value] : fields.items())
    if (value.is_string()) signature.fields[key] = value.get<std::string>();
  return signature;
}

std::vector<KeyDifference> changed_fields(const Signature& was, const Signature& now) {
  std::vector<KeyDifference> changed;
  const auto device = [](const Signature& of) {
    const auto found = of.fields.find("arithmetic.device");
    return found == of.fields.end() ? "" : found->second;
  };
  const bool other_device = device(was) != device(now);
  for (const auto& [key, value] : was.fields) {
    const auto found = now.fields.find(key);
    if (found == now.fields.end() && other_device && key.starts_with(kPrefix)) continue;
    const std::string other = found == now.fields.end() ? "missing" : found->second;
    if (other != value) changed.push_back({key, value, other});
  }
  return changed;
}

FieldChange change_of(const std::string& field) {
  if (field.starts_with(kPrefix)) return FieldChange::by_name;
  const schema::Key* key = schema::find(field);
  if (!key) return FieldChange::never;
  switch (key->matters) {
    case Matters::numerics:
    case Matters::layout:
      return FieldChange::by_name;
    case Matters::always:
    case Matters::place:
      return FieldChange::never;
    case Matters::recipe:
    case Matters::never:
      return FieldChange::free;
  }
  return FieldChange::never;
}

bool allows(const std::vector<std::string>& names, const std::string& field) {
  return change_of(field) == FieldChange::by_name &&
         std::ranges::any_of(names, [&](const std::string& name) {
           return field == name || field.starts_with(name + ".");
         });
}

std::vector<std::string> change_names(const Config& config) {
  std::vector<std::string> names;
  std::istringstream list(config.run.change_numerics);
  for (std::string name; std::getline(list, name, ',');) {
    std::erase(name, ' ');
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

Status check_change_names(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto wrong = [&name](const std::string& text) {
      return Status(Code::bad_config, name + ": " + text);
    };
    const size_t dot = name.find('.');
    if (!name.starts_with(kPrefix) && !schema::find(name))
      return wrong(
          "there is no such field; `config show CONFIG --signature` lists all; nearest known "
          "key: " +
          schema::nearest_key(name.substr(0, dot),
                              dot == std::string::npos ? "" : name.substr(dot + 1)));
    if (change_of(name) == FieldChange::free) return wrong("this key may change without it");
    if (change_of(name) == FieldChange::never)
      return wrong("a run cannot change this key; `train CONFIG --from RUN` begins a new run");
  }
  return {};
}

}  // namespace simplescale
