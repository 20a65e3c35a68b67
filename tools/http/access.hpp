// Who may read the page of a run: requests that have the run's token and name this server. Decisions
// are pure; page_token() reads the disk.
#pragma once

#include <string>
#include <string_view>

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

/// What is wrong with the head of a request, which ends with an empty line; "": nothing. One that two
/// programs could read in two ways is wrong: two headers Host, two lengths or one that is no number,
/// any Transfer-Encoding (the page takes no body), a line end, a space or a NUL where none belongs.
std::string wrong_head(std::string_view request);

/// The token of a run's page, 32 hex digits: that of control/http.json if the file is trusted and
/// names this host and the port that is configured, so that addresses stay valid when the supervisor
/// changes and when the run is started again; otherwise a random one, because open pages may have
/// sent the old one to another process that has that port. io.
Result<std::string> page_token(const RunFolder& run, const std::string& host, int port);
/// A random token. io.
Result<std::string> new_page_token();

}  // namespace simplescale
