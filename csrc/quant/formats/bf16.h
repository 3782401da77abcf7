// bfloat16.
#pragma once
#include "quant/numbers.h"
#if defined(FB_ISA)
#include "quant/vectors.h"
#endif

namespace fb::FB_SET::formats {

struct BF16 {
    static constexpr int id = 30, weights = 1, bytes = 2;
    static constexpr Field scale = {Number::bf16, 0}, offset = kNoField;
    static constexpr double centre = 0, spread = 1;
    static constexpr bool has_bytes = false;

    static FB_INLINE void decode(const uint8_t* block, float* out) { out[0] = bf16_to_f32(load_u16(block)); }

#if defined(FB_ISA)
    static FB_INLINE Floats run(const uint8_t* row, int64_t i) {
        return run_of([&](int v) { return load(reinterpret_cast<const uint16_t*>(row + i * 64) + v * kLanes); });
    }
#endif

#if defined(__AVX512BF16__)
    static constexpr bool has_codes = false;

    static FB_INLINE Runs<1> bf16_runs(const uint8_t* row, int64_t i) { return {load_raw<Run>(row + i * 64)}; }
#endif
};

}  // namespace fb::FB_SET::formats
