// The names of nodes and trainers: node 3 is "n3", the trainer in its slot 1 is "n3.1".
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace simplescale {

inline std::string node_name(int64_t node) {
  return "n" + std::to_string(node);
}

inline std::string trainer_name(const std::string& node, int slot) {
  return node + "." + std::to_string(slot);
}

/// "n3.1" -> "n3". A name without a slot stays as it is.
inline std::string node_of(const std::string& trainer) {
  return trainer.substr(0, trainer.rfind('.'));
}

/// The number of a node, from its name or the name of something on it ("n3", "n3.1", "n3/p0").
inline std::optional<int> node_number(const std::string& name) {
  int node = 0;
  if (std::sscanf(name.c_str(), "n%d", &node) != 1 || node < 0) return std::nullopt;
  return node;
}

/// "n3.1" -> 1; nothing if `trainer` is not the name of a trainer.
inline std::optional<int> slot_number(const std::string& trainer) {
  int node = 0, slot = 0;
  if (std::sscanf(trainer.c_str(), "n%d.%d", &node, &slot) != 2 || node < 0 || slot < 0)
    return std::nullopt;
  return slot;
}

}  // namespace simplescale
