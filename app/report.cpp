#include "app/report.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "app/terminal.hpp"
#include "runtime/base/printable.hpp"

namespace simplescale {

int report_status(const Status& status) {
  if (status.ok()) return 0;
  // One line, also if a file name has line ends; however long a text in it is.
  terminal::error("simplescale: %s\n", shown_name(status.message(), 8 << 10).c_str());
  return exit_code(status.code());
}

void report_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes)
    terminal::error("simplescale: note: %s\n", shown_name(note, 2 << 10).c_str());
}

int end_output(int code) {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && !std::ferror(stdout);
  if (written || code != 0) return code;
  return report_status(
      {Code::io, std::string("the output could not be written") +
                     (errno == 0 ? "" : std::string(": ") + std::strerror(errno))});
}

}  // namespace simplescale
