// What the supervisor knows of each node's agent. Plain data; the actor handles are the supervisor
// actor's.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace simplescale {

struct Agent {
  std::string host;
  int32_t pid = 0;
  std::string address;  // of its transport
  bool connected = false;
};
using Agents = std::map<std::string, Agent>;  // by node

inline bool connected(const Agents& agents, const std::string& node) {
  const auto found = agents.find(node);
  return found != agents.end() && found->second.connected;
}

}  // namespace simplescale
