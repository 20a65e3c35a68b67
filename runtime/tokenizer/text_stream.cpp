#include "runtime/tokenizer/text_stream.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace simplescale {
namespace {

constexpr size_t kContext = 8;         // ids before the new ones that decode() sees
constexpr size_t kCharacterBytes = 4;  // the most tokens that make one character

/// Decoded bytes that are not (yet) a character end with U+FFFD.
bool ends_in_half_a_character(std::string_view text) {
  return text.ends_with("\xEF\xBF\xBD");
}

}  // namespace

TextStream::TextStream(Decode decode, std::vector<int32_t> prompt, std::vector<std::string> stops)
    : decode_(std::move(decode)), stops_(std::move(stops)), window_(std::move(prompt)) {
  std::erase(stops_, "");
  if (window_.size() > kContext) window_.erase(window_.begin(), window_.end() - kContext);
  shown_ = window_.size();
}

std::string TextStream::add(int32_t id) {
  window_.push_back(id);
  const size_t before = decode_({window_.data(), shown_}).size();
  for (size_t end = window_.size(); end > shown_; --end) {
    const std::string text = decode_({window_.data(), end});
    // A first id that has waited for enough others begins no character.
    const bool never_one = end == shown_ + 1 && window_.size() - shown_ >= kCharacterBytes;
    if (ends_in_half_a_character(text) && !never_one) continue;
    if (text.size() > before) held_ += text.substr(before);
    shown_ = end;
  }
  if (shown_ > kContext) {
    const size_t old = shown_ - kContext;
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(old));
    shown_ = kContext;
  }
  return release();
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
  const std::string before = decode_({window_.data(), shown_}), now = decode_(window_);
  if (now.size() > before.size()) held_ += now.substr(before.size());
  return std::exchange(held_, {});
}

}  // namespace simplescale
