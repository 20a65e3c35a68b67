// What the supervisor knows about the agent of each node. Plain data; the supervisor actor keeps
// the actor handles.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace simplescale {

struct Agent {
  std::string host;
  int32_t pid = 0;
  std::string address;  // of the agent's transport
  bool connected = false;
  int32_t visible_pid = 0;  // `pid`, if it is in this process's pid namespace
};
using AgentRegistry = std::map<std::string, Agent>;  // by node

inline bool connected(const AgentRegistry& agents, const std::string& node) {
  const auto found = agents.find(node);
  return found != agents.end() && found->second.connected;
}

}  // namespace simplescale
