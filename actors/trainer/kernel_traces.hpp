// The steps of which a trainer records its GPU's kernels (metrics.trace_steps), and their files. Steps
// that follow each other share a file, so that what one leaves to the next is seen, too. The compute
// thread makes all calls, which log what fails.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/backend.hpp"

namespace simplescale {

class KernelTraces {
 public:
  KernelTraces(std::vector<int64_t> steps, std::string folder)
      : steps_(std::move(steps)), folder_(std::move(folder)) {}

  /// Before a step.
  void begin(Backend& backend, uint64_t step) const;
  /// After a step; last: no other one follows it.
  void end(Backend& backend, const std::string& trainer, uint64_t step, bool last) const;
  /// Ends the recording that a failed step has left behind, if there is one.
  void end_failed(Backend& backend, const std::string& trainer) const;

 private:
  bool contains(uint64_t step) const;
  void write(Backend& backend, const std::string& name) const;

  const std::vector<int64_t> steps_;
  const std::string folder_;
};

}  // namespace simplescale
