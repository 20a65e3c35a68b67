#include "app/report.hpp"
#include "app/terminal.hpp"

#include <algorithm>
#include <string>

namespace simplescale {

int report_status(const Status& status) {
  if (status.ok()) return 0;
  std::string message = status.message();
  std::ranges::replace(message, '\n', ' ');
  terminal::error("simplescale: %s\n", message.c_str());
  return exit_code(status.code());
}

}  // namespace simplescale
