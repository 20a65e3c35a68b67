// A temporary folder with the records of a run.
#pragma once

#include <string>

#include "runtime/base/files.hpp"
#include "tests/temp_folder.hpp"

namespace simplescale::test {

struct RecordsFolder : TempFolder {
  std::string text(const std::string& file) const { return *read_text(path + "/" + file); }
};

}  // namespace simplescale::test
