// The kernels of kernels.hpp for CPUs with AVX2 and FMA.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "model/cpu/kernels.hpp"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2")
#endif

#define SS_ISA avx2
#define SS_WIDTH 8
#include "model/cpu/kernels.inl"

#if defined(__x86_64__)
#pragma GCC pop_options
#endif
