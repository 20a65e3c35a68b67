// The kernels of kernels.hpp for CPUs with AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "model/cpu/kernels.hpp"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")
#endif

#define SS_ISA avx512
#define SS_WIDTH 16
#include "model/cpu/kernels.inl"

#if defined(__x86_64__)
#pragma GCC pop_options
#endif
