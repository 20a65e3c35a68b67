// doctest's main() for tests that need a GPU. Without one it exits 77, which ctest shows as
// skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstdio>

int main(int argc, char** argv) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no GPU (%s)\n", cudaGetErrorString(error));
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
