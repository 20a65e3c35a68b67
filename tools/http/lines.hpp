// Reads parts of a file of lines: for the HTTP server's answers and for the report. Any thread.
#pragma once

#include <cstddef>
#include <string>

namespace simplescale {

struct LineRange {
  size_t after = 0;   // lines from this offset on
  size_t last = 0;    // if not 0: only lines in the last bytes of the file
  size_t spread = 0;  // if not 0: this many lines spread over the file, then those behind the last
};

struct FileLines {
  std::string text;  // whole lines
  size_t next = 0;   // the offset behind them
};

/// Nothing if there is no such file. Of a large file, at most 1 MiB besides the spread lines.
FileLines read_lines(const std::string& path, LineRange range);

}  // namespace simplescale
