#include "runtime/feed/divide_batches.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/feed/run_data.hpp"

namespace simplescale {

const BatchSchedule::Steps* undivided_from(const BatchLayout& layout, uint64_t step) {
  const uint64_t row = layout.shards * layout.micro_batch_size;
  const std::vector<BatchSchedule::Steps>& runs = layout.batch.runs();
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool over = i + 1 < runs.size() && runs[i + 1].first <= step;
    if (!over && (runs[i].size % row != 0 || runs[i].size / row < layout.groups)) return &runs[i];
  }
  return nullptr;
}

Status check_batches(const Plan& plan, uint64_t step) {
  const BatchLayout layout = batch_layout(plan, static_cast<uint64_t>(plan.topology.groups));
  const BatchSchedule::Steps* steps = undivided_from(layout, step + 1);
  if (!steps) return {};
  const auto count = [](uint64_t number, const std::string& what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
  };
  const uint64_t row = layout.shards * layout.micro_batch_size;
  std::string text = "train.batch_warmup: step " +
                     std::to_string(std::max(step + 1, steps->first)) + " has " +
                     count(steps->size, "sample") + ", which " + count(layout.groups, "group") +
                     " of " + count(layout.shards, "trainer") + " x " +
                     count(layout.micro_batch_size, "sample") + " cannot divide: use ";
  if (step == 0)  // a run that has begun keeps its sizes
    text += "a size that is a multiple of " + std::to_string(row) + " and at least " +
            std::to_string(row * layout.groups) + ", or ";
  text += steps->size % row == 0
              ? "at most " + count(steps->size / row, "group")
              : "groups whose trainers x micro_batch_size divides " + std::to_string(steps->size);
  return Status(Code::bad_config, text);
}

}  // namespace simplescale
