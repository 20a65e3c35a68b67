#include "app/report.hpp"
#include "app/terminal.hpp"
#include "runtime/base/printable.hpp"

#include <string>

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

}  // namespace simplescale
