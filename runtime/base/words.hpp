// What people type, against what is known. Pure functions, any thread.
#pragma once

#include <string>
#include <vector>

namespace simplescale {

/// Insertions, removals and replacements of characters from one to the other.
size_t edit_distance(const std::string& a, const std::string& b);

/// The known word that is nearest, or "" if none is near: more than half of it is different.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

/// ": did you mean 'train'?", or "" if no known word is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

std::string joined(const std::vector<std::string>& words, const std::string& between = ", ");

}  // namespace simplescale
