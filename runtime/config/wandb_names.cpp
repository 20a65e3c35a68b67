#include "runtime/config/wandb_names.hpp"

#include <algorithm>
#include <sstream>

#include "runtime/base/words.hpp"

namespace simplescale {

namespace {

size_t characters(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));  // UTF-8
}

}  // namespace

std::vector<std::string> wandb_tags(const std::string& text) {
  std::vector<std::string> tags;
  std::istringstream list(text);
  for (std::string tag; std::getline(list, tag, ',');)
    if (tag = trimmed(tag); !tag.empty()) tags.push_back(tag);
  return tags;
}

std::string wrong_wandb_project(const std::string& project) {
  const bool fine = project.find_first_of("/\\#?%:") == std::string::npos;
  return fine && characters(project) <= 128
             ? ""
             : "must be at most 128 characters for W&B, none of them / \\ # ? % :";
}

std::string wrong_wandb_tags(const std::string& text) {
  const auto long_tag = [](const std::string& tag) { return characters(tag) > 64; };
  return std::ranges::any_of(wandb_tags(text), long_tag)
             ? "must have tags of at most 64 characters for W&B"
             : "";
}

}  // namespace simplescale
