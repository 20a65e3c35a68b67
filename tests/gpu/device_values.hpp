// Arrays that a kernel reads and writes: in GPU memory, or in host memory where the kernels are
// emulated. A CUDA error fails the running test.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "model/cuda/kernels.hpp"
#include "tests/gpu/reference.hpp"

namespace simplescale::testing {

inline void cuda_ok(cudaError_t error) {
  INFO("CUDA error " << static_cast<int>(error));
  REQUIRE(error == cudaSuccess);
}

#ifdef SIMPLESCALE_EMULATED_GPU
inline void* device_allocate(size_t bytes) {
  return ::operator new(bytes + 16, std::align_val_t(256));
}
inline void device_free(void* data) {
  ::operator delete(data, std::align_val_t(256));
}
inline void device_copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
#else
inline void* device_allocate(size_t bytes) {
  void* data = nullptr;
  cuda_ok(cudaMalloc(&data, bytes + 16));
  return data;
}
inline void device_free(void* data) {
  cuda_ok(cudaFree(data));
}
inline void device_copy(void* to, const void* from, size_t bytes) {
  cuda_ok(cudaDeviceSynchronize());
  cuda_ok(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}
#endif

/// A device array of T; aligned to 16 bytes, or one element off.
template <class T>
class Values {
 public:
  explicit Values(std::vector<T> values, bool aligned = true)
      : count_(values.size()),
        block_(device_allocate((count_ + 1) * sizeof(T))),
        data_(static_cast<T*>(block_) + (aligned ? 0 : 1)) {
    device_copy(data_, values.data(), count_ * sizeof(T));
  }
  ~Values() { device_free(block_); }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  T* data() const { return data_; }
  std::vector<T> host() const {
    std::vector<T> values(count_);
    device_copy(values.data(), data_, count_ * sizeof(T));
    return values;
  }

 private:
  size_t count_;
  void* block_;
  T* data_;
};

/// Random normal values that T represents exactly.
template <class T>
std::vector<T> some(int64_t count, double width = 1) {
  static std::mt19937 random(11);
  std::normal_distribution<double> normal(0, width);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& v : values) cuda::reference::assign(v, normal(random));
  return values;
}
template <class T>
std::vector<T> none(int64_t count) {
  return std::vector<T>(static_cast<size_t>(count));
}

/// Checks |ours - expected| against max(1, |expected|): a few roundings of T, times factor.
template <class T>
void check_near(const std::vector<T>& ours, const std::vector<T>& expected, double factor = 1) {
  REQUIRE(ours.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double a = double{cuda::reference::value(ours[i])},
                 b = double{cuda::reference::value(expected[i])};
    const double error = std::abs(a - b) / std::max(1.0, std::abs(b));
    if (!(error <= worst)) worst = error;  // also true for NaN
  }
  CHECK(worst < factor * (std::is_same_v<T, float> ? 2e-6 : 8e-3));
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace simplescale::testing
