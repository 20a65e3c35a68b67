#include "runtime/data/task_file.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/data/line_reader.hpp"

namespace simplescale {
namespace {

using Json = nlohmann::json;
constexpr size_t kLineBytesMax = size_t{16} << 20;

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(
      std::ranges::count_if(utf8, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// As Python's re.split(r"\s+", text).
uint64_t count_words(std::string_view text) {
  uint64_t words = 1;
  bool space = false;
  for (const char c : text) {
    const bool now = c == ' ' || (c >= '\t' && c <= '\r');
    words += now && !space;
    space = now;
  }
  return words;
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

size_t likeliest(const std::vector<double>& values) {
  return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
}

double share(uint64_t part, uint64_t all) {
  return all == 0 ? NAN : static_cast<double>(part) / static_cast<double>(all);
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

void TaskScore::add_question(const TaskRow& row, const std::vector<double>& log_likelihoods) {
  std::vector<double> normalized = log_likelihoods;
  for (size_t i = 0; i < normalized.size(); ++i)
    normalized[i] /= static_cast<double>(row.characters[i]);
  ++questions;
  right += likeliest(log_likelihoods) == row.answer;
  right_normalized += likeliest(normalized) == row.answer;
}

void TaskScore::add_text(const TaskRow& row, double text_log_likelihood) {
  words += count_words(row.text);
  bytes += row.text.size();
  log_likelihood += text_log_likelihood;
}

double TaskScore::accuracy() const {
  return share(right, questions);
}
double TaskScore::normalized_accuracy() const {
  return share(right_normalized, questions);
}
double TaskScore::word_perplexity() const {
  return std::exp(-log_likelihood / static_cast<double>(words));
}
double TaskScore::byte_perplexity() const {
  return std::exp(-log_likelihood / static_cast<double>(bytes));
}

std::string task_table(const TaskScores& scores) {
  size_t width = 4;
  for (const auto& [name, score] : scores) width = std::max(width, name.size());
  std::string out =
      "task" + std::string(width - 4, ' ') +
      "  questions  accuracy  by character   words  word perplexity  byte perplexity\n";
  for (const auto& [name, s] : scores) {
    char line[160];
    const auto cell = [&](uint64_t count, const char* format, double value) {
      char text[32] = "-";
      if (count > 0) std::snprintf(text, sizeof text, format, value);
      return std::string(text);
    };
    std::snprintf(line, sizeof line, "  %9llu  %8s  %12s  %6llu  %15s  %15s\n",
                  static_cast<unsigned long long>(s.questions),
                  cell(s.questions, "%.4f", s.accuracy()).c_str(),
                  cell(s.questions, "%.4f", s.normalized_accuracy()).c_str(),
                  static_cast<unsigned long long>(s.words),
                  cell(s.words, "%.2f", s.word_perplexity()).c_str(),
                  cell(s.words, "%.4f", s.byte_perplexity()).c_str());
    out += name + std::string(width - name.size(), ' ') + line;
  }
  return out;
}

std::string task_json(const TaskScores& scores) {
  Json all = Json::object();
  for (const auto& [name, s] : scores) {
    Json& task = all[name];
    if (s.questions > 0)
      task = {
          {"questions", s.questions}, {"acc", s.accuracy()}, {"acc_norm", s.normalized_accuracy()}};
    if (s.words > 0) {
      task["words"] = s.words;
      task["word_perplexity"] = number_or_null(s.word_perplexity());
      task["byte_perplexity"] = number_or_null(s.byte_perplexity());
    }
  }
  return json_text(all) + "\n";
}

}  // namespace simplescale
