#include "transport/protocol/convert.hpp"

namespace simplescale::wire {

std::vector<std::string> schema_names(const std::string& fields) {
  std::vector<std::string> names;
  for (size_t at = 0; at < fields.size();) {
    size_t end = fields.find(',', at);
    if (end == std::string::npos) end = fields.size();
    size_t dot = fields.find('.', at);
    std::string name;
    bool upper = false;
    for (size_t i = dot == std::string::npos ? end : dot + 1; i < end; ++i) {
      char c = fields[i];
      if (c == '_') {
        upper = true;
      } else {
        name += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
        upper = false;
      }
    }
    names.push_back(name);
    at = end + 1;
  }
  return names;
}

std::string member_name(const std::string& type) {
  std::string name = type;
  if (!name.empty()) {
    name[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(name[0])));
  }
  return name;
}

}  // namespace simplescale::wire
