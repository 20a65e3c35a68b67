// The only place where this program writes text to stdout and stderr, besides its log
// (runtime/base/log.hpp). All text is filtered by printable(), so that no byte of a log, a file or
// another process can control the user's terminal. tests/setup/includes.py refuses other calls.
#pragma once

#include <string>
#include <string_view>

namespace simplescale::terminal {

/// As printf() to stdout.
[[gnu::format(printf, 1, 2)]] void print(const char* format, ...);
/// As printf() to stderr.
[[gnu::format(printf, 1, 2)]] void error(const char* format, ...);
/// Writes the text to stdout.
void text(std::string_view text);
/// Writes a text to stdout that has colours of this program. Its parts from elsewhere are
/// printable() already.
void painted(std::string_view text);

/// What the program itself asks of the terminal.
namespace cursor {
constexpr const char *kClearScreen = "\033[2J", *kHome = "\033[H", *kClearBelow = "\033[J",
                     *kClearLine = "\033[K", *kLineStart = "\r";
/// Writes one of these to stdout, or to stderr.
void out(const char* sequence);
void err(const char* sequence);
}  // namespace cursor

}  // namespace simplescale::terminal
