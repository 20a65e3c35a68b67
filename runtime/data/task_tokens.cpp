#include "runtime/data/task_tokens.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "runtime/base/files.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/data/line_reader.hpp"

namespace simplescale {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;
constexpr size_t kLineBytesMax = size_t{256} << 20;

class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, int64_t block_size)
      : tokenizer_(tokenizer), context_(static_cast<size_t>(block_size)) {}

  /// bad_data: a pattern of the tokenizer needs too many steps for a text of the row.
  Result<TaskTokens> row(const TaskRow& row) {
    error_ = {};
    TaskTokens out = encode(row);
    SS_RETURN_IF_ERROR(error_);
    return out;
  }

 private:
  TaskTokens encode(const TaskRow& row) {
    TaskTokens out{.task = row.task, .characters = row.characters, .answer = row.answer};
    if (row.text.empty()) {
      out.sequences = choices(row);
      return out;
    }
    out.sequences = pieces(ids(row.text));
    out.words = count_words(row.text);
    out.bytes = row.text.size();
    return out;
  }

  Ids ids(std::string_view text) {
    Ids ids = tokenizer_.encode(text, &error_);
    ids.insert(ids.begin(), tokenizer_.bos() >= 0 ? tokenizer_.bos() : tokenizer_.eos());
    return ids;
  }

  std::vector<TaskSequence> choices(const TaskRow& row) {
    // Spaces at the end of a prompt belong to the first token of the choice.
    const Ids prompt = ids(without_spaces_at_end(row.prompt));
    std::vector<TaskSequence> sequences;
    for (const std::string& choice : row.choices) {
      // The tokens of both that follow as many as the prompt alone has.
      Ids whole = ids(row.prompt + choice);
      const size_t seen = std::min(prompt.size(), whole.size() - 1);
      std::copy_n(prompt.begin(), seen, whole.begin());
      sequences.push_back(last_of(whole, seen));
    }
    return sequences;
  }

  std::vector<TaskSequence> pieces(const Ids& ids) const {
    std::vector<TaskSequence> sequences;
    for (size_t begin = 1; begin < ids.size(); begin += context_)
      sequences.push_back(
          last_of(std::span(ids).first(std::min(begin + context_, ids.size())), begin));
    return sequences;
  }

  /// Scores the tokens from `begin` on, after as many of those before as fit the context.
  TaskSequence last_of(std::span<const int32_t> ids, size_t begin) const {
    const size_t first = ids.size() - 1 > context_ ? ids.size() - 1 - context_ : 0;
    begin = std::max(begin, first + 1);
    return {ids.size() - begin, Ids(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end())};
  }

  const Tokenizer& tokenizer_;
  const size_t context_;
  Status error_;  // of the row
};

bool fits(const TaskSequence& sequence, int64_t block_size, int64_t vocab) {
  const std::vector<int32_t>& ids = sequence.ids;
  return sequence.scored > 0 && sequence.scored < ids.size() &&
         ids.size() <= static_cast<size_t>(block_size) + 1 &&
         std::ranges::all_of(ids, [&](int32_t id) { return id >= 0 && id < vocab; });
}

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
         std::ranges::all_of(row.sequences,
                             [&](const TaskSequence& s) { return fits(s, block_size, vocab); });
}

}  // namespace

Result<std::vector<TaskTokens>> encode_tasks(const std::vector<TaskRow>& rows,
                                             const Tokenizer& tokenizer, int64_t block_size,
                                             int64_t vocab) {
  if (tokenizer.bos() < 0 && tokenizer.eos() < 0)
    return Status(Code::bad_data, "the tokenizer has neither BOS nor EOS to begin a text");
  Encoder encoder(tokenizer, block_size);
  std::vector<TaskTokens> encoded;
  for (const TaskRow& row : rows) {
    auto made = encoder.row(row);
    if (!made.ok()) return made.status().in("text " + std::to_string(encoded.size() + 1));
    encoded.push_back(made.take());
    for (const TaskSequence& sequence : encoded.back().sequences)
      if (sequence.scored == 0)
        return Status(Code::bad_data, "the tokenizer makes no tokens of a choice of the prompt \"" +
                                          row.prompt + "\"");
      else if (!fits(sequence, block_size, vocab))
        return Status(Code::bad_data, "the tokenizer makes ids beyond the model's vocabulary of " +
                                          std::to_string(vocab) +
                                          "; it is not the tokenizer of this model");
  }
  return encoded;
}

Status write_task_tokens(const std::string& path, const std::vector<TaskTokens>& rows) {
  std::string text;
  for (const TaskTokens& row : rows) text += json_text(json_of(row)) + "\n";
  return write_file_atomic(path, text);
}

Result<std::vector<TaskTokens>> read_task_tokens(const std::string& path, int64_t block_size,
                                                 int64_t vocab) {
  SS_ASSIGN(LineReader lines, LineReader::open(path, kLineBytesMax));
  std::vector<TaskTokens> rows;
  for (std::string_view line;;) {
    SS_ASSIGN(const bool more, lines.next(line));
    if (!more) break;
    rows.emplace_back();
    if (!parse(line, block_size, vocab, rows.back()))
      return Status(Code::bad_data, path + ": line " + std::to_string(lines.number()) +
                                        " is damaged; `train` writes the file again");
  }
  return rows;
}

}  // namespace simplescale
