// The main of every doctest program.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#ifdef __SANITIZE_ADDRESS__
// UCX 1.13.1 forgets 100 bytes for each endpoint over shared memory that it cannot open because the
// other process has just died (uct_mm_ep_t_new, its table of segments). Our own frames are not on
// the stacks that the check keeps, so the library is all that can be named.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libuct.so\n";
}
#endif
