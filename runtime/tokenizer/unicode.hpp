// What Unicode says about characters: normal forms, white space, words. Wraps utf8proc. Pure
// functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace simplescale {

enum class NormalForm : unsigned char { nfc, nfd, nfkc, nfkd };

/// The text in a normal form. text: valid UTF-8.
std::string to_normal_form(std::string_view text, NormalForm form);

/// Unicode's White_Space.
bool is_white_space(char32_t c);
/// A letter, mark, decimal digit or connector, as \w of Rust's regular expressions.
bool is_word_character(char32_t c);

}  // namespace simplescale
