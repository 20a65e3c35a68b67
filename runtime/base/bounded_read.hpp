// Reads files of another user, which may be larger than the memory: a file with holes takes no space
// on the disk. Any thread. Blocks on the disk.
#pragma once

#include <cstddef>
#include <istream>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

inline constexpr size_t kTextLineMax = size_t{16} << 20;  // bytes

/// As read_text(path) of files.hpp, which takes at most 256 MiB. bad_data: it has more than
/// bytes_max.
Result<std::string> read_text(const std::string& path, size_t bytes_max);
/// As std::getline(), but also false at a line of more than bytes_max; then file.eof() is false.
bool next_line(std::istream& file, std::string& line, size_t bytes_max = kTextLineMax);

}  // namespace simplescale
