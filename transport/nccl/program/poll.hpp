// The program's own poll(), which all libraries of its process call. NCCL 2.28's service threads look
// for an abort when poll() returns, every 500 ms, and end after the second time. So an aborted
// communicator takes up to a second to end, and a closed one half, for which a new generation waits.
// This poll() returns to NCCL's threads after 10 ms; for all other libraries it does what the C
// library's does. A program has this poll() if its target compiles poll.cpp.
#pragma once

#include <string_view>

namespace simplescale {

/// The timeout of a call of poll() from a library, which has this path.
int poll_timeout_ms(int timeout_ms, std::string_view library);

}  // namespace simplescale
