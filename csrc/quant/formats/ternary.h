// d f32, codes[8] in two bits, the first in the lowest: weight = d * (code - 1). Code 3 is not written. Not GGML's:
// ternary weights with one scale for a whole tensor are converted to it, because the scale is exact in float32. GGML
// does not use its number, and only files that we wrote may have it (engine/formats/types.py).
#pragma once
#include "quant/numbers.h"
#if defined(FB_ISA)
#include "quant/vectors.h"
#endif

namespace fb::FB_SET::formats {

struct TERNARY {
    static constexpr int id = 0x46420009, weights = 32, bytes = 12;  // "FB", 9
    static constexpr Field scale = {Number::f32, 0}, offset = kNoField;
    static constexpr double centre = 0, spread = 1.225;
    static constexpr bool has_bytes = false;

    static FB_INLINE void decode(const uint8_t* block, float* out) {
        const float d = load_f32(block);
        for (int j = 0; j < 32; ++j) out[j] = d * float((block[4 + j / 4] >> (j % 4 * 2) & 3) - 1);
    }

#if defined(FB_ISA)
    static FB_INLINE Floats run(const uint8_t* row, int64_t i) {
        const uint8_t* block = row + i * bytes;
        const float d = load_f32(block);
        UVec shifts;
        for (int j = 0; j < kLanes; j++) shifts[j] = uint32_t(2 * j);
        return run_of([&](int v) {
            const int first = v * kLanes;  // sixteen codes in a word
            const UVec word = UVec{} + (load_u32(block + 4 + first / 16 * 4) >> (first % 16 * 2));
            return to_float((IVec)(word >> shifts & 3u) - 1) * d;
        });
    }
#endif

#if defined(__AVX512BF16__)
    static constexpr bool has_codes = false;

    static FB_INLINE Runs<1> bf16_runs(const uint8_t* row, int64_t i) {
        const Floats values = run(row, i);
        return {narrow((__m512)values.v[0], (__m512)values.v[1])};
    }
#endif
};

}  // namespace fb::FB_SET::formats
