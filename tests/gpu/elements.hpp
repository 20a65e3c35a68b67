// Elements of one of the precisions in the fake GPU's memory.
#pragma once

#include <cstdint>

#include "runtime/base/dtype.hpp"
#include "tests/gpu/reference.hpp"

namespace simplescale::cuda {

struct Elements {
  void* data;
  DType dtype;
  double operator[](int64_t i) const {
    return dtype == DType::f32 ? double{static_cast<const float*>(data)[i]}
                               : double{reference::value(static_cast<const Bf16*>(data)[i])};
  }
  void set(int64_t i, double value) const {
    if (dtype == DType::f32)
      reference::assign(static_cast<float*>(data)[i], value);
    else
      reference::assign(static_cast<Bf16*>(data)[i], value);
  }
};

}  // namespace simplescale::cuda
