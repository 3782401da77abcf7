// Unpacking stored weights, a run of 32 at a time, in registers.
// quant/decode.h documents the formats and is the oracle; here every type is cut into runs of 32 weights.
#pragma once
#include "quant/decode.h"
#include "simd/isa.h"

namespace fb::FB_ISA {

constexpr int kRun = 32, kRunVectors = kRun / kLanes;

struct Floats {
    Vec v[kRunVectors];
};

// A block's half-precision numbers. `head_half` may read eight bytes, one instruction that loads and converts: every
// number but Q6_K's, the last in its block, has as many behind it.
FB_INLINE float half_to_float(const uint8_t* bytes) {
#if defined(__F16C__)
    uint16_t bits;
    __builtin_memcpy(&bits, bytes, 2);
    return _cvtsh_ss(bits);
#else
    return load_f16(bytes);
#endif
}
FB_INLINE float head_half(const uint8_t* bytes) {
#if defined(__F16C__)
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
#else
    return load_f16(bytes);
#endif
}

// kLanes bytes, signed bytes or half-precision numbers, one a lane.
FB_INLINE UVec widen(const uint8_t* bytes) {
#if defined(__AVX512F__)
    return (UVec)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
    return (UVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
    uint32_t lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = bytes[i];
    return load_raw<UVec>(lanes);
#endif
}
FB_INLINE IVec widen(const int8_t* bytes) {
#if defined(__AVX512F__)
    return (IVec)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
    return (IVec)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
    int32_t lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = bytes[i];
    return load_raw<IVec>(lanes);
#endif
}
FB_INLINE Vec widen_halves(const uint8_t* halves) {
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
#elif defined(__AVX2__)
    return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
#else
    float lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = half_to_float(halves + 2 * i);
    return load_raw<Vec>(lanes);
#endif
}

FB_INLINE Vec to_float(IVec codes) { return __builtin_convertvector(codes, Vec); }
FB_INLINE Vec to_float(UVec codes) { return to_float((IVec)codes); }

FB_INLINE Vec count_up(float first) {
    Vec v;
    for (int i = 0; i < kLanes; i++) v[i] = first + float(i);
    return v;
}

// step * (code + first) + offset of the codes in the low four bits of each lane; the bits above are dirt.
FB_INLINE Vec level(UVec code, float step, float first, float offset) {
#if defined(__AVX512F__)
    // Sixteen lanes hold every value the block has, and the code picks one.
    return (Vec)_mm512_permutexvar_ps((__m512i)code, (__m512)(count_up(first) * step + offset));
#else
    return to_float(code & 15u) * step + (first * step + offset);
#endif
}

// The same for five bits: bit i of `fifth` is lane i's.
FB_INLINE Vec level(UVec code, uint32_t fifth, float step, float first, float offset) {
#if defined(__AVX512F__)
    const Vec low = level(code, step, first, offset), table = count_up(first + 16) * step + offset;
    return (Vec)_mm512_mask_permutexvar_ps((__m512)low, __mmask16(fifth), (__m512i)code, (__m512)table);
#else
    UVec mine;
    for (int i = 0; i < kLanes; i++) mine[i] = 1u << i;
    const UVec high = (UVec)(((fifth - UVec{}) & mine) == mine) & 16u;
    return to_float((code & 15u) | high) * step + (first * step + offset);
#endif
}

using Bytes = uint8_t __attribute__((vector_size(kRun)));

// Bit i: bit `which` of byte i of 32.
FB_INLINE uint32_t bits_of(const uint8_t* bytes, int which) {
#if defined(__AVX2__)
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    return uint32_t(_mm256_movemask_epi8(_mm256_sll_epi16(all, _mm_cvtsi32_si128(7 - which))));
#else
    uint32_t bits = 0;
    for (int i = 0; i < kRun; i++) bits |= uint32_t(bytes[i] >> which & 1) << i;
    return bits;
#endif
}

// Run `run` (weights [32 run, 32 run + 32)) of the row whose first block is at `row`.
template <TensorType type>
FB_INLINE Floats unpack_run(const uint8_t* row, int64_t run) {
    Floats out;
    const auto each = [&](auto value) {
        for (int v = 0; v < kRunVectors; v++) out.v[v] = value(v);
    };
    if constexpr (type == TensorType::F32) {
        __builtin_memcpy(&out, row + run * 128, 128);
    } else if constexpr (type == TensorType::F16) {
        each([&](int v) { return widen_halves(row + run * 64 + v * kLanes * 2); });
    } else if constexpr (type == TensorType::BF16) {
        each([&](int v) { return load(reinterpret_cast<const uint16_t*>(row + run * 64) + v * kLanes); });
    } else if constexpr (type == TensorType::Q8_0) {
        const uint8_t* block = row + run * 34;
        const float d = head_half(block);
        const int8_t* codes = reinterpret_cast<const int8_t*>(block + 2);
        each([&](int v) { return to_float(widen(codes + v * kLanes)) * d; });
    } else if constexpr (type == TensorType::Q4_K || type == TensorType::Q5_K) {
        constexpr bool five = type == TensorType::Q5_K;
        const uint8_t* block = row + run / 8 * (five ? 176 : 144);
        const int sub = int(run % 8);
        const ScaleAndMin s = k_scale(block + 4, sub);
        const float step = head_half(block) * float(s.scale), offset = -(head_half(block + 2) * float(s.min));
        const uint8_t* bytes = block + (five ? 48 : 16) + sub / 2 * 32;
        if constexpr (five) {
            const uint32_t fifth = bits_of(block + 16, sub);
            each([&](int v) {
                return level(widen(bytes + v * kLanes) >> (sub % 2 * 4), fifth >> (v * kLanes), step, 0, offset);
            });
        } else {
            each([&](int v) { return level(widen(bytes + v * kLanes) >> (sub % 2 * 4), step, 0, offset); });
        }
    } else if constexpr (type == TensorType::Q6_K) {
        const uint8_t* block = row + run / 8 * 210;
        const int half = int(run % 8) / 4, quarter = int(run % 4);
        Bytes low, high;
        __builtin_memcpy(&low, block + half * 64 + quarter % 2 * 32, kRun);
        __builtin_memcpy(&high, block + 128 + half * 32, kRun);
        const Bytes code = (low >> uint8_t(quarter / 2 * 4) & 15) | (high >> uint8_t(quarter * 2) & 3) << 4;
        int8_t codes[kRun];
        __builtin_memcpy(codes, &code, kRun);
        const float d = half_to_float(block + 208);
        const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192 + half * 8 + quarter * 2);
        const float steps[2] = {d * float(scales[0]), d * float(scales[1])};
        each([&](int v) {
            const float step = steps[v * kLanes / 16];
            return to_float(widen(codes + v * kLanes)) * step - 32 * step;
        });
    } else {
        // Sixteen bytes of nibbles: their low halves, then their high ones. Before them a scale, an offset if the
        // name ends in 1, and the fifth bits if there are five.
        constexpr bool five = type == TensorType::Q5_0 || type == TensorType::Q5_1;
        constexpr bool shifted = type == TensorType::Q4_1 || type == TensorType::Q5_1;
        constexpr int nibbles = 2 + 2 * shifted + 4 * five;
        constexpr float first = shifted ? 0 : five ? -16 : -8;
        const uint8_t* block = row + run * (nibbles + 16);
        const float step = head_half(block), offset = shifted ? head_half(block + 2) : 0;
        const uint32_t fifth = five ? load_u32(block + nibbles - 4) : 0;
        each([&](int v) {
            const UVec code = widen(block + nibbles + v * kLanes % 16) >> (v * kLanes / 16 * 4);
            if constexpr (five) return level(code, fifth >> (v * kLanes), step, first, offset);
            else return level(code, step, first, offset);
        });
    }
    return out;
}

// Calls body with the tensor type as a compile-time constant.
template <class Body>
FB_INLINE void with_type(TensorType type, const Body& body) {
#define FB_CASE(T) \
    case TensorType::T: return body(std::integral_constant<TensorType, TensorType::T>{})
    switch (type) {
        FB_CASE(F32);
        FB_CASE(F16);
        FB_CASE(BF16);
        FB_CASE(Q4_0);
        FB_CASE(Q4_1);
        FB_CASE(Q5_0);
        FB_CASE(Q5_1);
        FB_CASE(Q8_0);
        FB_CASE(Q4_K);
        FB_CASE(Q5_K);
        FB_CASE(Q6_K);
    }
#undef FB_CASE
}

// Weights [first, first + count) of a row. Whole runs go through unpack_run, the rest through the scalar decoder.
template <TensorType type>
FB_INLINE void unpack(const uint8_t* row, int64_t first, int64_t count, float* out) {
    int64_t at = 0;
    if (first % kRun == 0)
        for (; at + kRun <= count; at += kRun) {
            const Floats run = unpack_run<type>(row, (first + at) / kRun);
            __builtin_memcpy(out + at, &run, sizeof run);
        }
    if (at < count) decode_row(type, row, first + at, count - at, out + at);
}

}  // namespace fb::FB_ISA
