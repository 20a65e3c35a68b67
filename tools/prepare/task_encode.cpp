#include "tools/prepare/task_encode.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

namespace simplescale {
namespace {

using Ids = std::vector<int32_t>;

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
  int32_t begin() const { return tokenizer_.bos() >= 0 ? tokenizer_.bos() : tokenizer_.eos(); }

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
    ids.insert(ids.begin(), begin());
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

Status check_row(const TaskRow& row, const TaskTokens& tokens, int64_t block_size, int64_t vocab) {
  for (const TaskSequence& sequence : tokens.sequences)
    if (sequence.scored == 0)
      return Status(Code::bad_data, "the tokenizer makes no tokens of a choice of the prompt \"" +
                                        row.prompt + "\"");
    else if (!fits_model(sequence, block_size, vocab))
      return Status(Code::bad_data, "the tokenizer makes ids beyond the model's vocabulary of " +
                                        std::to_string(vocab) +
                                        "; it is not the tokenizer of this model");
  return {};
}

}  // namespace

Result<std::vector<TaskTokens>> encode_tasks(const std::vector<TaskRow>& rows,
                                             const Tokenizer& tokenizer, int64_t block_size,
                                             int64_t vocab) {
  if (tokenizer.bos() < 0 && tokenizer.eos() < 0)
    return Status(Code::bad_data, "the tokenizer has neither BOS nor EOS to begin a text");
  Encoder encoder(tokenizer, block_size);
  std::vector<TaskTokens> encoded;
  for (size_t i = 0; i < rows.size(); ++i) {
    const TaskRow& row = rows[i];
    const size_t first = encoded.size();
    Status wrong;
    if (row.needle) {
      auto made = encode_needle(row.task, *row.needle, tokenizer, encoder.begin(), block_size);
      wrong = made.status();
      if (made.ok()) std::ranges::move(*made, std::back_inserter(encoded));
    } else {
      auto made = encoder.row(row);
      wrong = made.status();
      if (made.ok()) encoded.push_back(made.take());
    }
    if (!wrong.ok()) return wrong.in("text " + std::to_string(i + 1));
    for (const TaskTokens& made : std::span(encoded).subspan(first))
      SS_RETURN_IF_ERROR(check_row(row, made, block_size, vocab));
  }
  return encoded;
}

}  // namespace simplescale
