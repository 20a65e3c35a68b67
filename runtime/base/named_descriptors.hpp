// Gives descriptors of this process a name, by which other processes of the same user on this host
// get copies of them. A name is an abstract Unix socket: a process that connects to it gets the
// descriptor. So names lie in no file system, nothing can remove them, and they end with their
// process. They belong to a network namespace. A socket is called by a hash of its name and the
// secret of the run, so that other users cannot take names in advance.
//
// One thread of the process serves all its names; it begins with the first one and ends with the
// process. All functions: any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Of all names of this process but those that begin with "lock/", which processes of several runs
/// use. Processes with different secrets do not find each other's names. Call it before them.
void set_name_secret(const std::string& secret);

/// A socket that holds the name, for offer_descriptor(); -1: the name is taken. io: no descriptor is
/// free. Without an offer, it only keeps the name from others until it is closed.
Result<int> take_name(const std::string& name);
/// Gives copies of `fd` to processes that ask at `socket`, from take_name() or received from another
/// process that offers it. Takes the socket, also if it fails; `fd` must stay open until withdraw().
/// Returns an id for that. io: too few descriptors or threads.
Result<uint64_t> offer_descriptor(const std::string& name, int socket, int fd);
/// Ends an offer, if this process still has it.
void withdraw_offer(uint64_t id);
/// The id of an offer of this process; 0: it has none of this name.
uint64_t find_offer(const std::string& name);

/// A copy of the descriptor of this name, from this process or another one. not_found: no process
/// offers the name, or its process has just ended. deadline: the process does not answer, for
/// instance because it is stopped. io: another user offers the name; no descriptor is free.
Result<int> receive_descriptor(const std::string& name, std::chrono::milliseconds patience);

/// The socket's abstract name, without the leading zero byte.
std::string socket_name(const std::string& name);

}  // namespace simplescale
