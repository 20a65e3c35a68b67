#include "runtime/training/task_score.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <regex>
#include <set>

#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"

namespace simplescale {
namespace {

using Json = nlohmann::json;

uint64_t likeliest(std::span<const double> values) {
  return static_cast<uint64_t>(std::ranges::max_element(values) - values.begin());
}

double share(uint64_t part, uint64_t all) {
  return all == 0 ? NAN : static_cast<double>(part) / static_cast<double>(all);
}

/// "accuracy 0.5000": a member of a task's scores; "" if it is missing.
std::string figure(const Json& of_task, const char* key, const char* name, const char* format) {
  const double value = real_of(of_task, key);
  if (std::isnan(value)) return "";
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return std::string(name) + " " + text;
}

}  // namespace

void TaskScore::add_question(std::span<const double> log_likelihoods,
                             std::span<const uint64_t> characters, uint64_t answer) {
  std::vector<double> normalized(log_likelihoods.begin(), log_likelihoods.end());
  for (size_t i = 0; i < normalized.size(); ++i)
    normalized[i] /= static_cast<double>(characters[i]);
  ++questions;
  right += likeliest(log_likelihoods) == answer;
  right_normalized += likeliest(normalized) == answer;
}

void TaskScore::add_text(double text_log_likelihood, uint64_t text_words, uint64_t text_bytes) {
  words += text_words;
  bytes += text_bytes;
  log_likelihood += text_log_likelihood;
}

double TaskScore::accuracy() const {
  return share(right, questions);
}
double TaskScore::normalized_accuracy() const {
  return share(right_normalized, questions);
}
double TaskScore::word_perplexity() const {
  return std::exp(-log_likelihood / static_cast<double>(words));
}
double TaskScore::byte_perplexity() const {
  return std::exp(-log_likelihood / static_cast<double>(bytes));
}

std::string task_table(const TaskScores& scores) {
  size_t width = 4;
  for (const TaskScore& s : scores) width = std::max(width, s.task.size());
  std::string out =
      "task" + std::string(width - 4, ' ') +
      "  questions  accuracy  by character   words  word perplexity  byte perplexity\n";
  for (const TaskScore& s : scores) {
    char line[160];
    const auto cell = [&](uint64_t count, const char* format, double value) {
      char text[32] = "-";
      if (count > 0) std::snprintf(text, sizeof text, format, value);
      return std::string(text);
    };
    std::snprintf(line, sizeof line, "  %9llu  %8s  %12s  %6llu  %15s  %15s\n",
                  static_cast<unsigned long long>(s.questions),
                  cell(s.questions, "%.4f", s.accuracy()).c_str(),
                  cell(s.questions, "%.4f", s.normalized_accuracy()).c_str(),
                  static_cast<unsigned long long>(s.words),
                  cell(s.words, "%.2f", s.word_perplexity()).c_str(),
                  cell(s.words, "%.4f", s.byte_perplexity()).c_str());
    out += s.task + std::string(width - s.task.size(), ' ') + line;
  }
  return out;
}

std::string depth_table(const TaskScores& scores) {
  std::map<std::string, std::map<uint64_t, std::map<uint64_t, double>>> tasks;  // by depth, length
  for (const TaskScore& s : scores) {
    static const std::regex name("(.+)/([0-9]{1,9})/([0-9]{1,3})");
    std::smatch parts;
    if (std::regex_match(s.task, parts, name))
      tasks[parts[1]][std::stoull(parts[3])][std::stoull(parts[2])] = s.accuracy();
  }
  std::string out;
  char cell[32];
  for (const auto& [task, depths] : tasks) {
    std::set<uint64_t> lengths;
    for (const auto& [depth, of] : depths)
      for (const auto& [length, accuracy] : of) lengths.insert(length);
    out += "\n" + task + ": accuracy by depth and tokens\n   depth";
    const auto add = [&](const char* format, auto value) {
      std::snprintf(cell, sizeof cell, format, value);
      out += cell;
    };
    for (const uint64_t length : lengths) add("%9llu", static_cast<unsigned long long>(length));
    for (const auto& [depth, of] : depths) {
      add("\n  %4llu %%", static_cast<unsigned long long>(depth));
      for (const uint64_t length : lengths) {
        const auto found = of.find(length);
        if (found != of.end())
          add("%9.4f", found->second);
        else
          out += "        -";
      }
    }
    out += "\n";
  }
  return out;
}

Json task_json(const TaskScores& scores) {
  Json all;
  for (const TaskScore& s : scores) {
    Json& task = all[s.task];
    if (s.questions > 0)
      task = {
          {"questions", s.questions}, {"acc", s.accuracy()}, {"acc_norm", s.normalized_accuracy()}};
    if (s.words > 0) {
      task["words"] = s.words;
      task["word_perplexity"] = number_or_null(s.word_perplexity());
      task["byte_perplexity"] = number_or_null(s.byte_perplexity());
    }
  }
  return all;
}

std::string task_text(const Json& tasks) {
  std::string text;
  if (!tasks.is_object()) return text;
  for (const auto& [name, of_task] : tasks.items()) {
    std::string figures;
    for (const std::string& one : {figure(of_task, "acc", "accuracy", "%.4f"),
                                   figure(of_task, "acc_norm", "by character", "%.4f"),
                                   figure(of_task, "word_perplexity", "perplexity by word", "%.2f"),
                                   figure(of_task, "byte_perplexity", "by byte", "%.4f")})
      if (!one.empty()) figures += (figures.empty() ? " " : ", ") + one;
    text += (text.empty() ? "" : "; ") + name + figures;
  }
  return text;
}

double mean_accuracy(const Json& tasks) {
  double sum = 0, count = 0;
  if (tasks.is_object())
    for (const Json& of_task : tasks)
      if (const double acc = real_of(of_task, "acc"); !std::isnan(acc)) {
        sum += acc;
        count += 1;
      }
  return count > 0 ? sum / count : NAN;
}

}  // namespace simplescale
