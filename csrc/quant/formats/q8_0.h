// d f16, codes[32] int8: weight = d * code
#pragma once
#include "quant/numbers.h"
#if defined(FB_ISA)
#include "quant/vectors.h"
#endif

namespace fb::FB_SET::formats {

struct Q8_0 {
    static constexpr int id = 8, weights = 32, bytes = 34;
    static constexpr Field scale = {Number::f16, 0}, offset = kNoField;
    static constexpr double centre = 0, spread = 73.9;
    static constexpr bool has_bytes = true;
    static constexpr int first_level = -128, last_level = 127;

    static FB_INLINE void decode(const uint8_t* block, float* out) {
        const float d = load_f16(block);
        for (int j = 0; j < 32; ++j) out[j] = d * float(int8_t(block[2 + j]));
    }

#if defined(FB_ISA)
    static FB_INLINE Floats run(const uint8_t* row, int64_t i) {
        const uint8_t* block = row + i * bytes;
        const float d = head_half(block);
        const int8_t* codes = reinterpret_cast<const int8_t*>(block + 2);
        return run_of([&](int v) { return to_float(widen(codes + v * kLanes)) * d; });
    }
#endif

#if defined(FB_ISA)
    template <int bias>
    static FB_INLINE Bytes byte_codes(const uint8_t* block, int) {
        static_assert(bias == 0 || bias == 128);
        return bytes_at(block + 2) ^ uint8_t(bias);
    }
    static FB_INLINE void numbers(const uint8_t* block, int count, Vec& scales, Vec&) {
        scales = lane_numbers<Number::f16>(block, bytes, count);
    }
#endif

#if defined(__AVX512BF16__)
    static constexpr bool has_codes = false;  // converting them costs as much as multiplying

    static FB_INLINE Runs<1> bf16_runs(const uint8_t* row, int64_t i) {
        const uint8_t* block = row + i * bytes;
        const __m512 d = splat_half(block);
        const __m128i* codes = (const __m128i*)(block + 2);
        return {narrow(d * bytes_to_float(_mm_loadu_si128(codes)), d * bytes_to_float(_mm_loadu_si128(codes + 1)))};
    }
#endif
};

}  // namespace fb::FB_SET::formats
