#include "tools/prepare/task_file.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "runtime/base/utf8.hpp"
#include "runtime/base/words.hpp"
#include "runtime/tokenizer/unicode.hpp"
#include "tools/prepare/json_row.hpp"
#include "tools/prepare/line_reader.hpp"

namespace simplescale {
namespace {

using Json = nlohmann::json;
constexpr size_t kLineBytesMax = size_t{64} << 20;  // as of rows of data
const std::vector<std::string> known_keys = {
    "task",    "text",   "prompt",    "choices", "answer", "delimiter", "haystack",
    "lengths", "depths", "questions", "seed",    "needle", "question"};

uint64_t count_characters(std::string_view utf8) {
  return static_cast<uint64_t>(
      std::ranges::count_if(utf8, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// null stands for a missing key, as tables with a column for each key are written.
bool has(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

bool has_control_character(std::string_view text) {
  return std::ranges::any_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7F; });
}

/// "promt": did you mean 'prompt'?
std::string shown_unknown(const std::string& key) {
  std::string shown = "\"" + key.substr(0, 60) + "\"";
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  return shown + did_you_mean(key, known_keys);
}

/// folder: in which a haystack lies. What is wrong with the row; empty if nothing is.
std::string parse_row(const Json& object, const std::string& folder, TaskRow& row) {
  for (const char* key : {"task", "text", "prompt", "delimiter"})
    if (has(object, key) && !object[key].is_string())
      return "\"" + std::string(key) + "\" must be a text";
  row.task = has(object, "task") ? object["task"].get<std::string>() : "all";
  if (row.task.empty() || has_control_character(row.task))
    return "\"task\" must be a name: not empty, and without control characters";
  if (has(object, "haystack")) return parse_needle(object, folder, row.needle.emplace());
  for (const char* key : {"lengths", "depths", "questions", "seed", "needle", "question"})
    if (has(object, key)) return "\"" + std::string(key) + "\" needs a \"haystack\"";
  if (has(object, "text")) {
    for (const char* key : {"prompt", "choices", "answer", "delimiter"})
      if (has(object, key))
        return "it has a \"text\" and \"" + std::string(key) +
               "\": a row is either a text or a question";
    row.text = object["text"];
    return row.text.empty() ? "its \"text\" is empty" : "";
  }
  if (!has(object, "prompt")) return "it has neither a \"prompt\" nor a \"text\"";
  row.prompt = object["prompt"];
  const std::string delimiter =
      has(object, "delimiter") ? object["delimiter"].get<std::string>() : " ";
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

Result<std::vector<TaskRow>> read_tasks(const std::string& path, std::string* warning) {
  SS_ASSIGN(LineReader lines, LineReader::open(path, kLineBytesMax));
  constexpr size_t kNamed = 12;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::set<std::string> unknown;
  std::vector<TaskRow> rows;
  for (std::string_view line;;) {
    SS_ASSIGN(const bool more, lines.next(line));
    if (!more) break;
    if (line.find_first_not_of(" \t\r\n") == line.npos) continue;
    TaskRow row;
    auto members = read_json_members(line, known_keys);
    const std::string wrong =
        members.ok() ? parse_row(members->values, folder, row) : members.status().message();
    std::string of_row;  // its first unknown key
    for (const std::string& key : members.ok() ? members->others : std::set<std::string>()) {
      const std::string shown = shown_unknown(key);
      if (of_row.empty()) of_row = "; it has the unknown key " + shown;
      if (unknown.size() < kNamed) unknown.insert(shown);
    }
    if (!wrong.empty())
      return Status(Code::bad_data,
                    path + ": line " + std::to_string(lines.number()) + ": " + wrong + of_row);
    rows.push_back(std::move(row));
  }
  if (warning && !unknown.empty())
    *warning = path + ": keys that are not read: " + joined({unknown.begin(), unknown.end()});
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
