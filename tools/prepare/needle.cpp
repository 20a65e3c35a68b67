#include "tools/prepare/needle.hpp"

#include <algorithm>
#include <filesystem>

#include "runtime/base/hash.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/splitmix64.hpp"
#include "runtime/base/utf8.hpp"
#include "tools/prepare/line_reader.hpp"

namespace simplescale {

namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;
constexpr size_t kCellsMax = 101;

bool says(const Json& row, const char* key) {
  return !member_of(row, key).is_null();
}

/// Sets a list of whole numbers in [least, most].
std::string parse_list(const Json& row, const char* key, uint64_t least, uint64_t most,
                       std::vector<uint64_t>& list) {
  if (!says(row, key)) return "";
  const Json& given = row[key];
  bool fine = given.is_array() && !given.empty() && given.size() <= kCellsMax;
  list.clear();
  for (size_t i = 0; fine && i < given.size(); ++i) {
    fine = given[i].is_number_unsigned();
    if (fine) list.push_back(given[i].get<uint64_t>());
    fine = fine && list.back() >= least && list.back() <= most;
  }
  return fine ? ""
              : "\"" + std::string(key) + "\" must be a list of whole numbers from " +
                    std::to_string(least) + " to " + std::to_string(most) + ", at most 101";
}

std::string read_haystack(const std::string& path, std::string& text) {
  auto lines = LineReader::open(path, kHaystackBytesMax);
  if (!lines.ok()) return "\"haystack\": " + lines.status().message();
  for (std::string_view line; text.size() < kHaystackBytesMax;) {
    const auto more = lines->next(line);
    if (!more.ok()) return "\"haystack\": " + more.status().message();
    if (!*more) break;
    text += line;
  }
  if (first_invalid_utf8(text) != text.size()) return "\"haystack\": " + path + " is not UTF-8";
  return text.empty() ? "\"haystack\": " + path + " is empty" : "";
}

/// Numbers from a seed, one after the other.
struct Draws {
  uint64_t seed = 0, drawn = 0;
  uint64_t below(uint64_t count) { return splitmix64_at(seed, drawn++) % count; }
};

/// Numbers of five digits that all differ; `answer` becomes the place of the one to find.
std::vector<std::string> draw_keys(Draws& draws, uint64_t& answer) {
  std::vector<std::string> keys;
  while (keys.size() < kNeedleChoices) {
    std::string key = std::to_string(10'000 + draws.below(90'000));
    if (std::ranges::find(keys, key) == keys.end()) keys.push_back(std::move(key));
  }
  answer = draws.below(kNeedleChoices);
  return keys;
}

std::string with_key(std::string sentence, const std::string& key) {
  for (size_t at; (at = sentence.find("{key}")) != std::string::npos;) sentence.replace(at, 5, key);
  return sentence;
}

void append_part(Ids& to, const Ids& from, size_t begin, size_t end) {
  to.insert(to.end(), from.begin() + static_cast<ptrdiff_t>(begin),
            from.begin() + static_cast<ptrdiff_t>(end));
}

}  // namespace

std::string parse_needle(const Json& row, const std::string& folder, Needle& needle) {
  for (const char* key : {"text", "prompt", "choices", "answer", "delimiter"})
    if (says(row, key))
      return "it has a \"haystack\" and \"" + std::string(key) + "\": a row is of one kind";
  for (const char* key : {"haystack", "needle", "question"})
    if (says(row, key) && !row[key].is_string())
      return "\"" + std::string(key) + "\" must be a text";
  for (const char* key : {"questions", "seed"})
    if (says(row, key) && !row[key].is_number_unsigned())
      return "\"" + std::string(key) + "\" must be a whole number";
  if (says(row, "needle")) needle.sentence = row["needle"];
  if (says(row, "question")) needle.question = row["question"];
  if (says(row, "questions")) needle.questions = row["questions"];
  if (says(row, "seed")) needle.seed = row["seed"];
  if (needle.sentence.find("{key}") == std::string::npos)
    return "\"needle\" must have {key}, where the number stands";
  if (needle.question.empty()) return "\"question\" is empty";
  if (needle.questions < 1 || needle.questions > 1000) return "\"questions\" must be 1 to 1000";
  std::string wrong = parse_list(row, "lengths", 1, 1'000'000, needle.lengths);
  if (wrong.empty()) wrong = parse_list(row, "depths", 0, 100, needle.depths);
  if (!wrong.empty()) return wrong;
  const std::filesystem::path path = row["haystack"].get<std::string>();
  return read_haystack((folder / path).string(), needle.haystack);
}

Result<std::vector<TaskTokens>> encode_needle(const std::string& task, const Needle& needle,
                                              const Tokenizer& tokenizer, int32_t begin,
                                              int64_t block_size) {
  const auto T = static_cast<uint64_t>(block_size);
  std::vector<uint64_t> lengths = needle.lengths;
  if (lengths.empty()) lengths = {T / 4, T / 2, T};
  const uint64_t longest = std::ranges::max(lengths);
  if (longest > T)
    return Status(Code::bad_data,
                  "a length of " + std::to_string(longest) +
                      " tokens is above the model's block_size = " + std::to_string(T));
  // Each token has a byte at least; most have more, so that a place can be chosen.
  size_t bytes = std::min<size_t>(needle.haystack.size(), longest * 16 + (1 << 20));
  while (bytes < needle.haystack.size() && (needle.haystack[bytes] & 0xC0) == 0x80) --bytes;
  Status error;
  const Ids hay = tokenizer.encode(std::string_view(needle.haystack).substr(0, bytes), &error);
  const Ids prompt = tokenizer.encode_rest("\n" + needle.question, &error);
  std::vector<TaskTokens> rows;
  for (const uint64_t length : lengths)
    for (const uint64_t depth : needle.depths)
      for (uint64_t q = 0; q < needle.questions; ++q) {
        const std::string cell = std::to_string(length) + "/" + std::to_string(depth);
        const std::string named = cell + "/" + std::to_string(q);
        Draws draws{needle.seed ^ hash128(named.data(), named.size()).low};
        TaskTokens row{.task = task + "/" + cell};
        const std::vector<std::string> keys = draw_keys(draws, row.answer);
        const Ids sentence = tokenizer.encode_rest(
            "\n" + with_key(needle.sentence, keys[row.answer]) + "\n", &error);
        std::vector<Ids> ends;  // the question with each of the numbers
        size_t longest_end = 0;
        for (const std::string& key : keys) {
          ends.push_back(tokenizer.encode_rest("\n" + needle.question + " " + key, &error));
          longest_end = std::max(longest_end, ends.back().size());
          row.characters.push_back(key.size());
        }
        SS_RETURN_IF_ERROR(error);
        const size_t others = 1 + sentence.size() + longest_end;
        if (others > length)
          return Status(Code::bad_data, "a length of " + std::to_string(length) +
                                            " tokens has no room for the needle and the question, "
                                            "which are " +
                                            std::to_string(others));
        const size_t text = length - others;
        if (hay.size() < text)
          return Status(Code::bad_data, "the haystack has only " + std::to_string(hay.size()) +
                                            " tokens; a length of " + std::to_string(length) +
                                            " needs " + std::to_string(text));
        const size_t from = draws.below(hay.size() - text + 1);
        const size_t before = (depth * text + 50) / 100;
        for (const Ids& end : ends) {
          TaskSequence sequence{.ids = {begin}};
          append_part(sequence.ids, hay, from, from + before);
          append_part(sequence.ids, sentence, 0, sentence.size());
          append_part(sequence.ids, hay, from + before, from + text);
          // As of other questions: the tokens behind as many as the prompt alone has.
          const size_t seen = std::min(prompt.size(), end.size() - 1);
          append_part(sequence.ids, prompt, 0, seen);
          append_part(sequence.ids, end, seen, end.size());
          sequence.scored = end.size() - seen;
          row.sequences.push_back(std::move(sequence));
        }
        rows.push_back(std::move(row));
      }
  return rows;
}

}  // namespace simplescale
