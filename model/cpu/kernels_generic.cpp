// The kernels of kernels.hpp for CPUs without AVX2, in vectors of 4.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "model/cpu/kernels.hpp"

#define SS_ISA generic
#define SS_WIDTH 4
#include "model/cpu/kernels.inl"
