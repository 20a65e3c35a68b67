// Turns token ids, one after the other, into text that can be shown at once. A token alone is not
// always text: several tokens may make one character, and a stop string may begin in one token and
// end in another. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace simplescale {

class TextStream {
 public:
  using Decode = std::function<std::string(std::span<const int32_t>)>;
  /// decode: the tokenizer's. prompt: the ids before the first one of add(); they give no text.
  /// stops: strings that end the text; the text does not hold them. Empty ones are ignored.
  TextStream(Decode decode, std::vector<int32_t> prompt, std::vector<std::string> stops);

  /// The text that is certain now: whole characters, and no beginning of a stop string.
  std::string add(int32_t id);
  /// True: a stop string has come. add() must not be called again.
  bool stopped() const { return stopped_; }
  /// What add() held back. Call it once, at the end.
  std::string finish();

 private:
  /// Adds to held_ the text that is new, without up to `halves` U+FFFD at its end. False: there is
  /// none.
  bool take(size_t halves);
  std::string release();

  const Decode decode_;
  std::vector<std::string> stops_;
  // First the ids of the newest text in held_, whose characters are whole; then the ids that wait.
  std::vector<int32_t> window_;
  size_t context_ = 0;  // the number of the first ones; decode() needs them before the others
  std::string taken_;   // the part of the window's text that take() has added to held_
  size_t waiting_ = 0;  // ids that add() got since take() last found text
  std::string held_;
  bool stopped_ = false;
};

}  // namespace simplescale
