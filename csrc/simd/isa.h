// The vector type of the instruction set being compiled, and the basic functions of the kernels.
//
// FB_ISA names the set and the namespace. Vectors are the compiler's own (GCC and Clang vector extensions), so the same
// source serves SSE2, AVX2, AVX-512 and NEON. Intrinsics appear only where the language has no equivalent.
#pragma once
#include <algorithm>
#include <limits>
#include <utility>

#include "core/thread_pool.h"
#include "core/types.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef FB_ISA
#error "FB_ISA must name the instruction set being compiled"
#endif

namespace fb::FB_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRegisterVectors = 4;  // width of a micro-kernel tile, in vectors
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kRegisterVectors = 2;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kRegisterVectors = 4;
#else
constexpr int kLanes = 4;
constexpr int kRegisterVectors = 2;
#endif

using Vec = float __attribute__((vector_size(4 * kLanes)));
using IVec = int32_t __attribute__((vector_size(4 * kLanes)));
using UVec = uint32_t __attribute__((vector_size(4 * kLanes)));
using HVec = uint16_t __attribute__((vector_size(2 * kLanes)));
using WVec = uint16_t __attribute__((vector_size(4 * kLanes)));
using QVec = uint64_t __attribute__((vector_size(4 * kLanes)));

FB_INLINE Vec splat(float x) { return x - Vec{}; }

template <class V, class T>
FB_INLINE V load_raw(const T* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

// Loads and stores of kLanes elements stored as float or as bf16.
FB_INLINE Vec load(const float* p) { return load_raw<Vec>(p); }
FB_INLINE Vec load(const uint16_t* p) { return (Vec)(__builtin_convertvector(load_raw<HVec>(p), UVec) << 16); }
FB_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
FB_INLINE void store(uint16_t* p, Vec v) {
#if defined(__AVX512BF16__)
    const __m256bh narrow = _mm512_cvtneps_pbh((__m512)v);
    __builtin_memcpy(p, &narrow, sizeof narrow);
#else
    const UVec bits = (UVec)v;
    const UVec rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const UVec quiet = bits >> 16 | 0x40u;
    const HVec narrow = __builtin_convertvector((v == v) ? rounded : quiet, HVec);
    __builtin_memcpy(p, &narrow, sizeof narrow);
#endif
}

FB_INLINE float load1(const float* p) { return *p; }
FB_INLINE float load1(const uint16_t* p) { return bf16_to_f32(*p); }
FB_INLINE void store1(float* p, float v) { *p = v; }
FB_INLINE void store1(uint16_t* p, float v) { *p = f32_to_bf16(v); }

// The first n < kLanes elements; the other lanes are `fill`.
template <class T>
FB_INLINE Vec load_part(const T* p, int64_t n, float fill = 0) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = fill;
    for (int64_t i = 0; i < n; i++) lanes[i] = load1(p + i);
    return load(lanes);
}
template <class T>
FB_INLINE void store_part(T* p, int64_t n, Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int64_t i = 0; i < n; i++) store1(p + i, lanes[i]);
}

FB_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }

// Whether a comparison is true in any lane.
FB_INLINE bool any(IVec lanes) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#else
    int32_t found = 0;
    for (int i = 0; i < kLanes; i++) found |= lanes[i];
    return found != 0;
#endif
}

FB_INLINE Vec square_root(Vec v) {
#if defined(__AVX512F__)
    return (Vec)_mm512_sqrt_ps((__m512)v);
#elif defined(__AVX2__)
    return (Vec)_mm256_sqrt_ps((__m256)v);
#elif defined(__x86_64__)
    return (Vec)_mm_sqrt_ps((__m128)v);
#elif defined(__aarch64__)
    return (Vec)vsqrtq_f32((float32x4_t)v);
#else
    for (int i = 0; i < kLanes; i++) v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}

// Rounds to the nearest integer, halves to even.
FB_INLINE IVec nearest(Vec v) {
#if defined(__AVX512F__)
    return (IVec)_mm512_cvtps_epi32((__m512)v);
#elif defined(__AVX2__)
    return (IVec)_mm256_cvtps_epi32((__m256)v);
#elif defined(__x86_64__)
    return (IVec)_mm_cvtps_epi32((__m128)v);
#elif defined(__aarch64__)
    return (IVec)vcvtnq_s32_f32((float32x4_t)v);
#else
    IVec out;
    for (int i = 0; i < kLanes; i++) out[i] = int32_t(__builtin_rintf(v[i]));
    return out;
#endif
}

FB_INLINE float sum(Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int half = kLanes / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

FB_INLINE float max_lane(Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    float best = lanes[0];
    for (int i = 1; i < kLanes; i++) best = lanes[i] > best ? lanes[i] : best;
    return best;
}

// e^x to about 1 ulp: x = n ln2 + r, a degree-6 polynomial for e^r, times 2^n. Underflows to 0
// below -87.3 (subnormals are flushed), saturates at e^88. NaN becomes NaN.
FB_INLINE Vec exp(Vec x) {
    constexpr float kLeast = -87.3365f, kMost = 88.0f;
#if defined(__AVX512F__)
    const __mmask16 alive = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(kLeast), _CMP_NLT_UQ);
    const Vec clamped = (Vec)_mm512_min_ps(_mm512_set1_ps(kMost), (__m512)x);  // a NaN second operand is returned
#else
    const Vec clamped = x < splat(kLeast) ? splat(kLeast) : (x > splat(kMost) ? splat(kMost) : x);
#endif
    const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec shifted = clamped * 1.44269504f + magic;
    const Vec n = shifted - magic;
    const Vec r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    Vec poly = splat(1.9875691500e-4f);
    poly = poly * r + 1.3981999507e-3f;
    poly = poly * r + 8.3334519073e-3f;
    poly = poly * r + 4.1665795894e-2f;
    poly = poly * r + 1.6666665459e-1f;
    poly = poly * r + 5.0000001201e-1f;
    poly = poly * r * r + r + 1.0f;
#if defined(__AVX512F__)
    return (Vec)_mm512_maskz_scalef_ps(alive, (__m512)poly, (__m512)n);
#else
    const IVec exponent = ((IVec)shifted - (IVec)magic) << 23;
    const Vec value = (Vec)((IVec)poly + exponent);
    const Vec result = x < splat(kLeast) ? Vec{} : value;
    return x == x ? result : x;
#endif
}

FB_INLINE float exp1(float x) { return exp(splat(x))[0]; }

FB_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

// tanh to about 2 ulp: an odd polynomial where 1 - 2 / (e^2x + 1) would cancel. NaN becomes NaN.
FB_INLINE Vec tanh(Vec x) {
    const Vec size = x < Vec{} ? -x : x, square = x * x;
    Vec poly = splat(-5.70498872745e-3f);
    poly = poly * square + 2.06390887954e-2f;
    poly = poly * square - 5.37397155531e-2f;
    poly = poly * square + 1.33314422036e-1f;
    poly = poly * square - 3.33332819422e-1f;
    const Vec far = 1.0f - 2.0f / (exp(size + size) + 1.0f);
    return size < splat(0.625f) ? poly * square * x + x : (x < Vec{} ? -far : far);
}

FB_INLINE int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// body(0), body(1), ... body(Count - 1), each with a constant: a loop that the compiler must unroll, however long its
// body.
template <class Body, int... i>
FB_INLINE void unrolled(const Body& body, std::integer_sequence<int, i...>) {
    (body(std::integral_constant<int, i>{}), ...);
}
template <int Count, class Body>
FB_INLINE void unrolled(const Body& body) {
    unrolled(body, std::make_integer_sequence<int, Count>{});
}

// Calls body with the flag as a constant.
template <class Body>
FB_INLINE void by_flag(bool flag, const Body& body) {
    if (flag) body(std::true_type());
    else body(std::false_type());
}

// Calls body(typed pointer tag) for a view's element type: float or bf16 (uint16_t).
template <class Body>
FB_INLINE void by_dtype(Dtype dtype, const Body& body) {
    if (dtype == Dtype::bf16) body(static_cast<uint16_t*>(nullptr));
    else body(static_cast<float*>(nullptr));
}

// Divides rows into chunks large enough to justify a thread.
template <class Body>
void parallel_rows(int64_t rows, int64_t cols, const Body& body) {
    const int64_t chunk = std::max<int64_t>(1, 16384 / std::max<int64_t>(cols, 1));
    parallel_for((rows + chunk - 1) / chunk, [&](int64_t unit) {
        const int64_t end = std::min(rows, (unit + 1) * chunk);
        for (int64_t r = unit * chunk; r < end; r++) body(r);
    });
}

}  // namespace fb::FB_ISA
