// The limits of this process (ulimit), and what to say when one is too low. Any thread.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// UINT64_MAX: unlimited. Of what a process needs: 0 is nothing.
struct ProcessLimits {
  uint64_t stack = 0;          // bytes; ulimit -s
  uint64_t descriptors = 0;    // ulimit -n
  uint64_t threads = 0;        // of all processes of this user; ulimit -u
  uint64_t address_space = 0;  // bytes; ulimit -v
};

/// Of this process. Those for the stack and for descriptors are the ones up to which it may raise its
/// own, as our programs do. Root has none for threads.
ProcessLimits process_limits();

/// Makes this process need less than its limits. Call it before a thread starts. The main thread,
/// and threads that start from now on, get a stack of the usual size if their limit is lower. Under
/// a limit of the address space all threads allocate from one heap: each one of their own would
/// reserve 64 MiB. io: the limit of the stack cannot be raised to what this program needs.
Status adapt_to_limits();

/// io: the first limit that is lower than what `what` needs ("train"), with both figures and the
/// command that raises it.
Status check_limits(const std::string& what, const ProcessLimits& needs,
                    const ProcessLimits& limits = process_limits());

/// " (ulimit -v: N KiB)" for a message about memory that could not be had; "": unlimited.
std::string address_space_hint(const ProcessLimits& limits = process_limits());

/// A sentence for an exception that reached main() or the end of a thread: what ran out, and which
/// limit may be the cause.
Status exception_status(const std::exception& error,
                        const ProcessLimits& limits = process_limits());
/// Writes such a sentence to stderr, without allocating: for a process that can say no other one.
void tell_no_memory() noexcept;

}  // namespace simplescale
