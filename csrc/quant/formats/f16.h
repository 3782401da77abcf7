// IEEE half precision.
#pragma once
#include "quant/numbers.h"
#if defined(FB_ISA)
#include "quant/vectors.h"
#endif

namespace fb::FB_SET::formats {

struct F16 {
    static constexpr int id = 1, weights = 1, bytes = 2;
    static constexpr Field scale = {Number::f16, 0}, offset = kNoField;
    static constexpr double centre = 0, spread = 1;
    static constexpr bool has_bytes = false;

    static FB_INLINE void decode(const uint8_t* block, float* out) { out[0] = load_f16(block); }

#if defined(FB_ISA)
    static FB_INLINE Floats run(const uint8_t* row, int64_t i) {
        return run_of([&](int v) { return widen_halves(row + i * 64 + v * kLanes * 2); });
    }
#endif

#if defined(__AVX512BF16__)
    static constexpr bool has_codes = false;

    static FB_INLINE Runs<1> bf16_runs(const uint8_t* row, int64_t i) {
        const __m256i* halves = (const __m256i*)(row + i * 64);
        return {narrow(_mm512_cvtph_ps(_mm256_loadu_si256(halves)), _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1)))};
    }
#endif
};

}  // namespace fb::FB_SET::formats
