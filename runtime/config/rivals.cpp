#include "runtime/config/rivals.hpp"

#include <algorithm>

#include "runtime/base/printable.hpp"
#include "runtime/base/words.hpp"
#include "runtime/config/schema.hpp"

namespace simplescale {

namespace {

struct Group {
  std::vector<std::vector<const char*>> sides;  // the keys of a side go together
  const char* what;
  const char* both;  // of one place; "": other checks refuse them
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {{{"train.max_tokens"}, {"train.max_iters"}, {"train.max_steps"}},
       "how long the run is",
       "the run ends at the first of them that is reached"},
      {{{"train.warmup_steps"}, {"train.warmup_tokens"}, {"train.warmup_iters"}},
       "how long the warm-up is",
       ""},
      {{{"data.source"}, {"data.blend", "data.stage"}}, "what the run trains on", ""},
      {{{"tokenizer.path"}, {"tokenizer.kind", "tokenizer.train_on"}},
       "which tokenizer the run has",
       "no tokenizer is trained if tokenizer.path names one"}};
  return all;
}

bool is_default(const schema::Key& key, const Config& config) {
  return schema::to_toml(key.in(config)) == schema::to_toml(key.in(Config{}));
}

/// "train.max_iters = 60 (run.toml:12)".
std::string shown(const char* name, const LoadedConfig& loaded) {
  const schema::Key& key = *schema::find(name);
  return std::string(name) + " = " + shown_name(schema::to_toml(key.in(loaded.config)), 60) + " (" +
         loaded.origin.at(name) + ")";
}

/// The first key of a side that a place sets to something; null: it sets none. A number's default
/// means that it is not set; a choice is one also if it is the default.
const char* said_of(const std::vector<const char*>& side, const std::vector<std::string>& said,
                    const LoadedConfig& loaded) {
  for (const char* name : side) {
    const schema::Key& key = *schema::find(name);
    Config scratch;
    const bool choice = std::holds_alternative<schema::EnumRef>(key.at(scratch));
    if (std::ranges::find(said, name) != said.end() && (choice || !is_default(key, loaded.config)))
      return name;
  }
  return nullptr;
}

void give_default_back(const schema::Key& key, LoadedConfig& loaded) {
  Config defaults;
  std::visit(
      [](auto to, auto from) {
        if constexpr (std::is_same_v<decltype(to), decltype(from)>) {
          if constexpr (std::is_same_v<decltype(to), schema::EnumRef>)
            *to.value = *from.value;
          else
            *to = *from;
        }
      },
      key.at(loaded.config), key.at(defaults));
  loaded.origin[key.full_name()] = "default";
}

void settle(const Group& group, const std::vector<std::string>& said, LoadedConfig& loaded) {
  std::vector<const char*> speakers;
  for (const auto& side : group.sides)
    if (const char* name = said_of(side, said, loaded)) speakers.push_back(name);
  if (speakers.empty()) return;
  std::vector<std::string> set;
  for (const char* name : speakers)
    if (!is_default(*schema::find(name), loaded.config)) set.push_back(shown(name, loaded));
  if (set.size() > 1 && *group.both)
    loaded.notes.push_back(joined(set, " and ") + " both say " + group.what + ": " + group.both);
  for (const auto& side : group.sides) {
    if (said_of(side, said, loaded)) continue;
    for (const char* name : side) {
      const schema::Key& key = *schema::find(name);
      if (is_default(key, loaded.config) || std::ranges::find(said, name) != said.end()) continue;
      loaded.notes.push_back(shown(name, loaded) + " does not count, because " +
                             shown(speakers.front(), loaded) + " says " + group.what);
      give_default_back(key, loaded);
    }
  }
}

/// Keys of [model] override a preset, also one that was said later: that is only told.
void note_overridden_preset(const std::vector<std::string>& said, LoadedConfig& loaded) {
  const auto has = [&](const std::string& name) {
    return std::ranges::find(said, name) != said.end();
  };
  if (!has("model.preset") || loaded.config.model.preset.empty()) return;
  std::vector<std::string> older;
  for (const schema::Key& key : schema::keys())
    if (const std::string name = key.full_name();
        name.starts_with("model.") && !has(name) && !is_default(key, loaded.config))
      older.push_back(shown(name.c_str(), loaded));
  if (!older.empty())
    loaded.notes.push_back(shown("model.preset", loaded) + " does not change " +
                           joined(older, ", ") + ": keys of [model] override a preset");
}

}  // namespace

void settle_rivals(const std::vector<std::string>& said, LoadedConfig& loaded) {
  for (const Group& group : groups()) settle(group, said, loaded);
  note_overridden_preset(said, loaded);
}

void note_keys_without_effect(LoadedConfig& loaded) {
  const Config& c = loaded.config;
  const auto note = [&](bool idle, const char* name, const std::string& why) {
    if (idle && !is_default(*schema::find(name), c))
      loaded.notes.push_back(shown(name, loaded) + " has no effect: " + why);
  };
  const TrainConfig& t = c.train;
  note(t.schedule == Schedule::constant, "train.decay_steps", "train.schedule is \"constant\"");
  note(t.schedule != Schedule::polynomial, "train.decay_power",
       "train.schedule is not \"polynomial\"");
  note(t.optimizer != Optimizer::muon, "train.muon_momentum", "train.optimizer is not \"muon\"");
  note(t.validation_samples == 0, "train.validation_every_steps", "train.validation_samples is 0");
  const bool finds_documents =
      c.data.document_mask || !c.data.document_boundary_loss || c.data.pack == Pack::best_fit;
  for (const char* name : {"data.document_begin", "data.document_end"})
    note(!finds_documents, name,
         "none of data.document_mask, data.pack and data.document_boundary_loss = false asks for "
         "documents");
  const double decay = t.learning_rate * t.weight_decay;
  if (decay > 0 && static_cast<float>(1 - decay) == 1)
    note(true, "train.weight_decay",
         "1 - learning_rate * weight_decay is 1 in fp32, so a weight times it stays as it is");
}

}  // namespace simplescale
