// digits[52] to base three, d f16: weight = d * (digit - 1). A byte is a fraction of 256 whose first base-3 digits are
// weights: byte m of the first 32 has weights 32 n + m, byte m of the next 16 weights 160 + 16 n + m (n = 0..4 for
// both), byte m of the last 4 weights 240 + 4 n + m (n = 0..3).
#pragma once
#include "quant/level_blocks.h"

namespace fb::FB_SET::formats {

struct TQ1_0 : LevelBlocks<TQ1_0> {
    static constexpr int id = 34, bytes = 54, parts = 1;
    static constexpr int first_level = -1, last_level = 1;
    static constexpr Field scale = {Number::f16, 52}, offset = kNoField;
    static constexpr double centre = 0, spread = 0.8165;
    static constexpr float unit = 1;
    static constexpr bool has_codes = true;

    static FB_INLINE int level(const uint8_t* block, int j) {
        const int start = j < 160 ? 0 : j < 240 ? 160 : 240, width = j < 160 ? 32 : j < 240 ? 16 : 4;
        constexpr int powers[] = {1, 3, 9, 27, 81};
        const int byte = block[start / 5 + (j - start) % width] * powers[(j - start) / width] & 255;
        return (byte * 3 >> 8) - 1;
    }
    template <class Parts>
    static FB_INLINE uint32_t scales(const uint8_t*, const Parts&) {
        return 1;
    }

#if defined(FB_ISA)
    static FB_INLINE Bytes levels(const uint8_t* block, int i) {
        if (i < 5) return first_digit(skip_digits(bytes_at(block), i));
        // The other 96 weights: sixteen bytes of five digits, then four bytes of four.
        const Sixteen bytes = load_raw<Sixteen>(block + 32);
        const Sixteen low = skip_digits(bytes, i * 2 - 10);
        if (i < 7) return first_digit(joined(low, skip_digits(low, 1)));
        const uint32_t last = load_raw<uint32_t>(block + 48);
        const Sixteen powers = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
        return first_digit(joined(low, (Sixteen)Words{last, last, last, last} * powers));
    }

private:
    using Sixteen = uint8_t __attribute__((vector_size(16)));
    using Words = uint32_t __attribute__((vector_size(16)));

    static FB_INLINE Bytes joined(Sixteen low, Sixteen high) {
#if defined(__AVX2__)
        return (Bytes)_mm256_set_m128i((__m128i)high, (__m128i)low);
#else
        const Sixteen both[] = {low, high};
        return bytes_at(reinterpret_cast<const uint8_t*>(both));
#endif
    }
    template <class V>
    static FB_INLINE V skip_digits(V bytes, int count) {
        for (int n = 0; n < count; n++) bytes = bytes + bytes + bytes;
        return bytes;
    }
    // A third of 256 is 85 1/3.
    static FB_INLINE Bytes first_digit(Bytes bytes) { return Bytes{} - 1 - (Bytes)(bytes > 85) - (Bytes)(bytes > 170); }
#endif
};

}  // namespace fb::FB_SET::formats
