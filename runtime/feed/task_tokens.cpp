#include "runtime/feed/task_tokens.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"

namespace simplescale {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;
constexpr size_t kLineBytesMax = size_t{256} << 20;

Json json_of(const TaskTokens& row) {
  Json line = {{"task", row.task}, {"sequences", Json::array()}};
  for (const TaskSequence& s : row.sequences) line["sequences"].push_back({s.scored, s.ids});
  if (!row.characters.empty()) {
    line["characters"] = row.characters;
    line["answer"] = row.answer;
  } else {
    line["words"] = row.words;
    line["bytes"] = row.bytes;
  }
  return line;
}

/// Throws an error of the library if a member is missing or of another type.
TaskTokens parsed(const Json& line) {
  TaskTokens row;
  row.task = line.at("task").get<std::string>();
  for (const Json& sequence : line.at("sequences"))
    row.sequences.push_back({sequence.at(0).get<uint64_t>(), sequence.at(1).get<Ids>()});
  if (line.contains("characters")) {
    row.characters = line["characters"].get<std::vector<uint64_t>>();
    row.answer = line.at("answer").get<uint64_t>();
  } else {
    row.words = line.at("words").get<uint64_t>();
    row.bytes = line.at("bytes").get<uint64_t>();
  }
  return row;
}

/// False: the line is damaged.
bool parse(std::string_view text, int64_t block_size, int64_t vocab, TaskTokens& row) {
  try {
    row = parsed(parse_json(text));
  } catch (const Json::exception&) {
    return false;
  }
  const bool question = !row.characters.empty();
  return (!question ||
          (row.characters.size() == row.sequences.size() && row.answer < row.sequences.size())) &&
         std::ranges::all_of(row.sequences, [&](const TaskSequence& s) {
           return fits_model(s, block_size, vocab);
         });
}

Status damaged_line(const std::string& path, size_t number) {
  return Status(Code::bad_data, path + ": line " + std::to_string(number) +
                                    " is damaged; `train` writes the file again");
}

}  // namespace

bool fits_model(const TaskSequence& sequence, int64_t block_size, int64_t vocab) {
  const std::vector<int32_t>& ids = sequence.ids;
  return sequence.scored > 0 && sequence.scored < ids.size() &&
         ids.size() <= static_cast<size_t>(block_size) + 1 &&
         std::ranges::all_of(ids, [&](int32_t id) { return id >= 0 && id < vocab; });
}

Status write_task_tokens(const std::string& path, const std::vector<TaskTokens>& rows) {
  std::string text;
  for (const TaskTokens& row : rows) text += json_text(json_of(row)) + "\n";
  return write_file_atomic(path, text);
}

Result<std::vector<TaskTokens>> read_task_tokens(const std::string& path, int64_t block_size,
                                                 int64_t vocab) {
  std::ifstream file = open_lines(path);
  if (!file.is_open()) return Status(Code::not_found, path + ": cannot be opened");
  std::vector<TaskTokens> rows;
  for (std::string line; next_line(file, line, kLineBytesMax);) {
    rows.emplace_back();
    if (!parse(line, block_size, vocab, rows.back())) return damaged_line(path, rows.size());
  }
  if (!file.eof()) return damaged_line(path, rows.size() + 1);
  return rows;
}

}  // namespace simplescale
