// What Unicode says about characters: normal forms, white space, words. Wraps utf8proc. Pure
// functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace simplescale {

enum class NormalForm : unsigned char { nfc, nfd, nfkc, nfkd };

/// The text in a normal form. text: valid UTF-8.
std::string to_normal_form(std::string_view text, NormalForm form);

/// Each character in lowercase, whatever is around it. text: valid UTF-8.
std::string to_lowercase(std::string_view text);
/// The text without accents and other marks that are characters of their own. text: valid UTF-8.
std::string without_marks(std::string_view text);

/// Unicode's White_Space.
bool is_white_space(char32_t c);
/// A letter, mark, decimal digit or connector, as \w of Rust's regular expressions.
bool is_word_character(char32_t c);

}  // namespace simplescale
