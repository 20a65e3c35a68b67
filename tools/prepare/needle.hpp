// A needle in a haystack: rows of a task file that ask for a number which stands somewhere in a long
// text of the user. Pure but for reading the text; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/feed/task_tokens.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

/// {key} in the sentence stands for the number.
struct Needle {
  std::string haystack;  // the text; at most kHaystackBytesMax of the file
  std::vector<uint64_t>
      lengths;  // tokens of a sequence; empty: block_size, and a half and a quarter
  /// Of the sentence, in percent: 0 begins the text, 100 ends it.
  std::vector<uint64_t> depths = {0, 25, 50, 75, 100};
  uint64_t questions = 10;  // for each length and depth
  uint64_t seed = 0;
  std::string sentence = "The secret number is {key}.", question = "The secret number is";
};
inline constexpr size_t kHaystackBytesMax = size_t{32} << 20;
inline constexpr size_t kNeedleChoices = 4;

/// Sets what the row says, and reads its haystack, relative to `folder`. Returns what is wrong with the
/// row; "" if nothing is.
std::string parse_needle(const nlohmann::json& row, const std::string& folder, Needle& needle);

/// Questions with the names TASK/LENGTH/PERCENT. Each sequence is BOS (`begin`), text with the sentence
/// in it, the question, and one of four numbers. Place in the text, numbers and their order follow from
/// seed, length, depth and the question's number only. bad_data: a length is above block_size or has no
/// room for sentence and question, or the text is shorter.
Result<std::vector<TaskTokens>> encode_needle(const std::string& task, const Needle& needle,
                                              const Tokenizer& tokenizer, int32_t begin,
                                              int64_t block_size);

}  // namespace simplescale
