// Which variables of this process's environment a child gets. Any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace simplescale {

/// all: every variable. needed: those that the processes of a run and their libraries read, and those
/// that kPassVariable names. with_bucket: these, and the settings and keys of object stores.
enum class Inherits : unsigned char { all, needed, with_bucket };

/// Names more variables for `needed`, separated by spaces or commas; "DARSHAN_*" are all that begin
/// with DARSHAN_.
inline constexpr const char* kPassVariable = "SIMPLESCALE_PASS";

/// A list instead of rules for what is secret: a secret may have any name and any form.
bool inherits_variable(Inherits inherits, const std::string& name);

using Variables = std::vector<std::pair<std::string, std::string>>;
/// The environment of a child, as NAME=VALUE: what it inherits, and `added`, which counts more.
std::vector<std::string> child_environment(const Variables& added, Inherits inherits);

/// The texts as exec() takes arguments and variables: pointers that end with nullptr and last as long
/// as `texts` is unchanged.
std::vector<char*> argument_list(std::vector<std::string>& texts);

}  // namespace simplescale
