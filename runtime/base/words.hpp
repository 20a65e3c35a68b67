// Words: suggestions for misspelt ones, lists, counts, blanks around them. Pure functions, any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace simplescale {

/// Number of insertions, removals and replacements of characters that turn `a` into `b`.
size_t edit_distance(const std::string& a, const std::string& b);

/// The known word with the smallest edit distance; "" if more than half of its characters differ.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

/// ": did you mean 'train'?", or "" if nearest_word() finds none.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

/// The words in a row, with `between` between them.
std::string joined(const std::vector<std::string>& words, const std::string& between = ", ");

/// The text without the characters of `blanks` at both ends.
std::string trimmed(std::string_view text, const char* blanks = " \t\r\n");

/// "1 group", "2 groups".
std::string counted(int64_t number, const std::string& noun);

/// True if a file's name has this ending, in lower case or in capitals.
bool has_ending(std::string_view name, std::string_view ending);

}  // namespace simplescale
