// Who may read the page of a run: requests that have the run's token and name this server. Decisions
// are pure; page_token() reads the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// True if the header Host of a request names this server: by an IP address, "localhost", the
/// address that it is bound to, or the name of its machine. A web page of another server whose name
/// an attacker points at this address (DNS rebinding) sends that server's name.
bool allowed_host(const std::string& header, const std::string& bound, const std::string& machine);

/// True if the request has the token: in the header "Authorization: Bearer TOKEN", or as the
/// parameter `token`. An empty `token` is never given. The time does not depend on where texts
/// differ.
bool has_token(const std::string& authorization, const std::string& parameter,
               const std::string& token);

/// The token of a run's page, 32 hex digits: that of control/http.json if the file is trusted and of
/// this start of the run on this host, so that addresses stay valid when the supervisor changes;
/// otherwise a random one, because open pages may have sent the old one to a process that had the
/// port meanwhile. io.
Result<std::string> page_token(const RunFolder& run, const std::string& host);
/// A random token. io.
Result<std::string> new_page_token();

}  // namespace simplescale
