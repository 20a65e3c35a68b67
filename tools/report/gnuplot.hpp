// Texts that the scripts for gnuplot share.
#pragma once

#include <fmt/format.h>

#include <string>

namespace simplescale::gnuplot {

/// A data block. gnuplot requires at least one point.
inline std::string block(const std::string& name, const std::string& data) {
  return "$" + name + " << END\n" + (data.empty() ? "0 NaN\n" : data) + "END\n";
}

/// A string in gnuplot's single quotes, where a doubled quote is the only escape.
inline std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '`') continue;
    out += c == '\'' ? "''" : std::string(1, c);
  }
  return out + "'";
}

/// Where the picture goes, its height in an SVG of 1,000 points width, and the line at its top.
inline std::string picture(const std::string& output, int height, const std::string& title,
                           const std::string& facts) {
  const double scale = 1.5;  // a PNG's pixels
  return (output.ends_with(".svg")
              ? fmt::format("set terminal svg size 1000,{} noenhanced font 'sans,13' background "
                            "'#ffffff'\n",
                            height)
              : fmt::format("set terminal pngcairo size 1500,{:.0f} noenhanced font 'sans,10' "
                            "fontscale 1.4\n",
                            scale * height)) +
         "set output " + quoted(output) + "\nset label 1 " + quoted(title) +
         fmt::format(" at screen 0.07, screen {:.3f} font ',17' tc rgb '#222222'\nset label 2 ",
                     1 - 24.0 / height) +
         quoted(facts) +
         fmt::format(" at screen 0.07, screen {:.3f} font ',12' tc rgb '#666666'\n",
                     1 - 49.5 / height);
}

}  // namespace simplescale::gnuplot
