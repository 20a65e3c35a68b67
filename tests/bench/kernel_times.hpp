// Times every call of MKL and of a row kernel in this program, against the least time that the call
// can take. The linker puts these functions around those of libtorch and of model/cpu (--wrap).
#pragma once

#include <cstdint>

namespace simplescale::bench {

/// Forgets all calls, and records the following ones.
void start_recording();

/// Prints a table of the calls since start_recording(), of `steps` steps that took `step_ms` each.
/// Bounds: a product's is the time of the same calls by themselves, with the same operands on as
/// many threads at once; a row kernel's is that of a copy of as many bytes in the core's cache, or
/// in memory for passes over the state. It overwrites what products and copies write.
void print_kernels(int steps, double step_ms, int threads);

/// Records a call of this thread that lasts as long as the object. bytes: read and written.
class Timed {
 public:
  Timed(const char* name, double bytes, bool in_memory);
  ~Timed();

 private:
  const char* name_;
  double bytes_;
  bool in_memory_;
  double begin_;
};

}  // namespace simplescale::bench
