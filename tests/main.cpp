// main() of every doctest program.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#ifdef __SANITIZE_ADDRESS__
// UCX 1.13.1 leaks 100 bytes for each shared-memory endpoint that it cannot open because the other
// process has just died (uct_mm_ep_t_new, its table of segments). The stacks that LeakSanitizer
// keeps do not reach our frames, so the suppression has to name the whole library.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libuct.so\n";
}
#endif
