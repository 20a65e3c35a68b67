#include "app/report.hpp"

#include <algorithm>
#include <cstdio>
#include <string>

namespace simplescale {

int report_status(const Status& status) {
  if (status.ok()) return 0;
  std::string message = status.message();
  std::ranges::replace(message, '\n', ' ');
  std::fprintf(stderr, "simplescale: %s\n", message.c_str());
  return exit_code(status.code());
}

}  // namespace simplescale
