// The web page that HttpServer serves: CMake embeds page.html in the program.
#pragma once

#include <string_view>

namespace simplescale {

extern const std::string_view page_html;

}  // namespace simplescale
