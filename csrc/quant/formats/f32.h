// IEEE single precision.
#pragma once
#include "quant/numbers.h"
#if defined(FB_ISA)
#include "quant/vectors.h"
#endif

namespace fb::FB_SET::formats {

struct F32 {
    static constexpr int id = 0, weights = 1, bytes = 4;
    static constexpr Field scale = {Number::f32, 0}, offset = kNoField;
    static constexpr double centre = 0, spread = 1;
    static constexpr bool has_bytes = false;

    static FB_INLINE void decode(const uint8_t* block, float* out) { out[0] = load_f32(block); }

#if defined(FB_ISA)
    static FB_INLINE Floats run(const uint8_t* row, int64_t i) {
        Floats out;
        __builtin_memcpy(&out, row + i * 128, 128);
        return out;
    }
#endif

#if defined(__AVX512BF16__)
    static constexpr bool has_codes = false;

    static FB_INLINE Runs<1> bf16_runs(const uint8_t* row, int64_t i) {
        return {narrow(_mm512_loadu_ps(row + i * 128), _mm512_loadu_ps(row + i * 128 + 64))};
    }
#endif
};

}  // namespace fb::FB_SET::formats
