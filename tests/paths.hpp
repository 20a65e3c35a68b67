// Where the source tree and the dependencies lie. Only paths.cpp is compiled with these paths, so
// that clones in other folders share the other test objects through ccache.
#pragma once

#include <string>

/// The folder of the source tree, absolute.
std::string source_dir();
/// The folder `.deps` with Python and the libraries, absolute.
std::string deps_dir();
