// The page that HttpServer serves: page.html, which CMake makes a part of the program.
#pragma once

#include <string_view>

namespace simplescale {

extern const std::string_view page_html;

}  // namespace simplescale
