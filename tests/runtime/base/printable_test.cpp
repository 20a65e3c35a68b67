// No byte of a log or of another process can control a terminal.
#include "runtime/base/printable.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

using namespace simplescale;
using namespace std::string_literals;

namespace {

/// True if a terminal would obey a byte of the text: C0 but \n and \t, DEL, or C1 as UTF-8 or as a
/// byte that is no part of a character. An independent reading: by hand, character by character.
bool controls(const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 && byte != '\n' && byte != '\t') return true;
    if (byte == 0x7f) return true;
    if (byte >= 0x80 && byte < 0xa0) {
      size_t lead = i;  // of the character that the byte continues
      while (lead > 0 && i - lead < 3 && (static_cast<unsigned char>(text[lead]) & 0xc0) == 0x80)
        --lead;
      const auto first = static_cast<unsigned char>(text[lead]);
      const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first > 0xc2 ? 2 : 0;
      if (i - lead >= bytes) return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("printable: control characters become question marks, other text stays") {
  CHECK(printable("a\n\tb") == "a\n\tb");
  CHECK(printable("\033]0;title\007\r\b\x7f") == "?]0;title????");
  CHECK(printable("\0"s) == "?");
  CHECK(printable("\x9b"
                  "31m") == "?31m");
  CHECK(printable("\xc2\x9b"
                  "31m") == "?31m");
  CHECK(printable("\xc3\x9b\xe2\x80\x94\xf0\x9f\x98\x80") ==
        "\xc3\x9b\xe2\x80\x94\xf0\x9f\x98\x80");
  CHECK(printable("\xe2\x9b") == "??");
  CHECK(printable("\xe2\033[2J") == "??[2J");
  CHECK(printable("\xe0\x80\x9b \xf0\x80\x80\x9b \xe0\x80\x8d \xc1\x9b") == "??? ???? ??? ??");
  CHECK(printable("caf\xe9 \xed\xa0\x80") == "caf? ???");
  CHECK(printable("\033[31mred\033[0m") == "?[31mred?[0m");
  CHECK(printable_painted("\033[31mred\033[0m\033[2J\033[8m") == "\033[31mred\033[0m?[2J?[8m");
}

TEST_CASE("printable: what turns text around or ends a line is shown as an escape") {
  const std::string around = "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e";
  const std::string want = "\\u061c\\u200e\\u200f\\u2028\\u2029\\u202a\\u202b\\u202c\\u202d\\u202e";
  CHECK(printable(around + "\u2066\u2067\u2068\u2069") == want + "\\u2066\\u2067\\u2068\\u2069");
  CHECK(printable_painted("a\u202eb") == "a\\u202eb");
  const std::string kept = "\u200d\u2027\u202f\u2065\u206a\u061b\u061d \u05d0\u0627 \U0001f600";
  CHECK(printable(kept) == kept);
}

TEST_CASE("printable: a name is one line of bounded length") {
  CHECK(shown_name("layers.0.weight \u05d0") == "layers.0.weight \u05d0");
  CHECK(shown_name("a\nb\tc\r\033[2J\x7f") == "a\\nb\\tc\\x0d\\x1b[2J\\x7f");
  CHECK(shown_name("\xc2\x9b"
                   "a \x9b \xff caf\xe9") == "\\xc2\\x9ba \\x9b \\xff caf\\xe9");
  CHECK(shown_name("gpl\u202etxt.exe") == "gpl\\u202etxt.exe");
  CHECK(shown_name("\0"s) == "\\x00");
  CHECK(shown_name(std::string(200, 'x')) == std::string(200, 'x'));
  CHECK(shown_name(std::string(20'000'000, 'x')) ==
        std::string(100, 'x') + "…" + std::string(50, 'x') + " (20000000 bytes)");
  std::string wide;
  for (int i = 0; i < 100; ++i) wide += "\u20ac";  // of three bytes each
  CHECK(shown_name("a" + wide).starts_with("a\u20ac"));
  CHECK(shown_name("a" + wide).find("\\x") == std::string::npos);
}

TEST_CASE("printable: nothing that random bytes contain controls a terminal") {
  std::mt19937 random(7);
  const std::string likely = "\033\x9b\xc2[m\x07\n\x80\xe2\xf0";
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (int bytes = static_cast<int>(random() % 12); bytes > 0; --bytes)
      text += random() % 2 ? likely[random() % likely.size()] : static_cast<char>(random());
    CHECK_MESSAGE(!controls(printable(text)), i);
  }
}
