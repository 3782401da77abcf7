// d f32, m f32, codes[32] uint8: weight = d * code + m. Not GGML's: MLX's groups of 8 bits are converted to it; their
// scales and biases, f16 or bf16, are exact in float32. GGML does not use its number, and only files that we wrote may
// have it (engine/formats/types.py).
#pragma once
#include "quant/numbers.h"
#if defined(FB_ISA)
#include "quant/vectors.h"
#endif

namespace fb::FB_SET::formats {

struct AFFINE8 {
    static constexpr int id = 0x46420008, weights = 32, bytes = 40;  // "FB", 8
    static constexpr Field scale = {Number::f32, 0}, offset = {Number::f32, 4};
    static constexpr double centre = -127.5, spread = 73.9;
    static constexpr bool has_bytes = false;

    static FB_INLINE void decode(const uint8_t* block, float* out) {
        const float d = load_f32(block), m = load_f32(block + 4);
        for (int j = 0; j < 32; ++j) out[j] = d * float(block[8 + j]) + m;
    }

#if defined(FB_ISA)
    static FB_INLINE Floats run(const uint8_t* row, int64_t i) {
        const uint8_t* block = row + i * bytes;
        const float d = load_f32(block), m = load_f32(block + 4);
        return run_of([&](int v) { return to_float(widen(block + 8 + v * kLanes)) * d + m; });
    }
#endif

#if defined(__AVX512BF16__)
    static constexpr bool has_codes = false;  // converting them costs as much as multiplying

    static FB_INLINE Runs<1> bf16_runs(const uint8_t* row, int64_t i) {
        const Floats values = run(row, i);
        return {narrow((__m512)values.v[0], (__m512)values.v[1])};
    }
#endif
};

}  // namespace fb::FB_SET::formats
