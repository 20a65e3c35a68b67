#include "runtime/data/task_file.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/base/parse_json.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/data/line_reader.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace simplescale {
namespace {

using Json = nlohmann::json;
constexpr size_t kLineBytesMax = size_t{16} << 20;

uint64_t count_characters(std::string_view utf8) {
  return static_cast<uint64_t>(
      std::ranges::count_if(utf8, [](char c) { return (c & 0xC0) != 0x80; }));
}

bool is_text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string();
}

/// What is wrong with the row; empty if nothing is.
std::string parse_row(const Json& object, TaskRow& row) {
  if (object.is_discarded() || !object.is_object()) return "it is no JSON object";
  row.task = is_text(object, "task") ? object["task"].get<std::string>() : "all";
  if (is_text(object, "text")) {
    row.text = object["text"];
    return row.text.empty() ? "its \"text\" is empty" : "";
  }
  if (!is_text(object, "prompt")) return "it has neither a \"prompt\" nor a \"text\"";
  row.prompt = object["prompt"];
  const std::string delimiter =
      is_text(object, "delimiter") ? object["delimiter"].get<std::string>() : " ";
  const Json choices = object.value("choices", Json());
  if (!choices.is_array() || choices.size() < 2) return "\"choices\" needs at least two texts";
  for (const Json& choice : choices) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
      return "each of \"choices\" must be a text";
    row.characters.push_back(count_characters(choice.get_ref<const std::string&>()));
    row.choices.push_back(delimiter + choice.get<std::string>());
  }
  const Json answer = object.value("answer", Json());
  if (!answer.is_number_unsigned() || answer.get<uint64_t>() >= choices.size())
    return "\"answer\" must be the number of a choice, from 0";
  row.answer = answer;
  return "";
}

}  // namespace

Result<std::vector<TaskRow>> read_tasks(const std::string& path) {
  SS_ASSIGN(LineReader lines, LineReader::open(path, kLineBytesMax));
  std::vector<TaskRow> rows;
  for (std::string_view line;;) {
    SS_ASSIGN(const bool more, lines.next(line));
    if (!more) break;
    if (line.find_first_not_of(" \t\r\n") == line.npos) continue;
    TaskRow row;
    const std::string wrong = parse_row(parse_json(line), row);
    if (!wrong.empty())
      return Status(Code::bad_data,
                    path + ": line " + std::to_string(lines.number()) + ": " + wrong);
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return Status(Code::bad_data, path + " has no rows");
  return rows;
}

namespace {

/// What Python's str.isspace() is true for: Unicode's white space and four separators of ASCII.
bool is_python_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

}  // namespace

uint64_t count_words(std::string_view text) {
  uint64_t words = 1;
  bool space = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    const bool now = is_python_space(c.value);
    words += now && !space;
    space = now;
    at += c.bytes;
  }
  return words;
}

std::string_view without_spaces_at_end(std::string_view text) {
  while (!text.empty()) {
    const size_t last = code_point_before(text, text.size());
    if (!is_python_space(code_point_at(text, last).value)) break;
    text = text.substr(0, last);
  }
  return text;
}

}  // namespace simplescale
