#include "runtime/tokenizer/text_stream.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace simplescale {
namespace {

constexpr size_t kCharacterBytes = 4;               // the most ids that make one character
constexpr std::string_view kNone = "\xEF\xBF\xBD";  // what decode() makes of half a character

/// Bytes of the text before the U+FFFD at its end, of which at most `characters` are left out.
size_t without_halves(std::string_view text, size_t characters) {
  for (; characters > 0 && text.ends_with(kNone); --characters) text.remove_suffix(kNone.size());
  return text.size();
}

}  // namespace

TextStream::TextStream(Decode decode, std::vector<int32_t> prompt, std::vector<std::string> stops)
    : decode_(std::move(decode)),
      stops_(std::move(stops)),
      window_(std::move(prompt)),
      context_(window_.size()),
      taken_(decode_(window_)) {
  std::erase(stops_, "");
}

std::string TextStream::add(int32_t id) {
  window_.push_back(id);
  // Ids that have waited for so long begin no character; the last of them may.
  const bool broken = ++waiting_ >= kCharacterBytes;
  if (take(broken ? kCharacterBytes - 1 : window_.size())) waiting_ = 0;
  return release();
}

bool TextStream::take(size_t halves) {
  std::string text = decode_(window_);
  size_t end = without_halves(text, halves);
  if (end > taken_.size() && !text.starts_with(taken_)) {
    // Bytes that make no character may spoil those before them, which were shown.
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(context_));
    context_ = 0;
    taken_.clear();
    text = decode_(window_);
    end = without_halves(text, halves);
  }
  if (end <= taken_.size()) return false;
  held_.append(text, taken_.size(), end - taken_.size());
  if (end < text.size()) {
    taken_ = text.substr(0, end);
    return true;
  }
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(context_));
  context_ = window_.size();
  taken_ = decode_(window_);
  return true;
}

std::string TextStream::release() {
  size_t stop = held_.npos;
  for (const std::string& s : stops_) stop = std::min(stop, held_.find(s));
  if (stop != held_.npos) {
    stopped_ = true;
    held_.resize(stop);
    return std::exchange(held_, {});
  }
  size_t kept = 0;  // bytes at the end that may become a stop string
  for (const std::string& s : stops_)
    for (size_t n = std::min(s.size() - 1, held_.size()); n > kept; --n)
      if (held_.ends_with(std::string_view(s).substr(0, n))) kept = n;
  std::string out = held_.substr(0, held_.size() - kept);
  held_.erase(0, out.size());
  return out;
}

std::string TextStream::finish() {
  if (stopped_) return {};
  take(0);
  return std::exchange(held_, {});
}

}  // namespace simplescale
