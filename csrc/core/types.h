// Types that every kernel uses: element types and 2-D views of activations.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

// These headers are compiled once per instruction set. Small functions are always inlined, so that the linker cannot
// choose a copy built for one set for code that runs on another.
#define FB_INLINE inline __attribute__((always_inline))

// The namespace for everything that differs between builds: that of the instruction set, or one for plain C++.
#if defined(FB_ISA)
#define FB_SET FB_ISA
#else
#define FB_SET plain
#endif

namespace fb {

enum class Dtype : int { f32, bf16, f64 };

FB_INLINE float bf16_to_f32(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

// Round to nearest even; NaN stays NaN.
FB_INLINE uint16_t f32_to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// A row-major matrix in memory; `ld` is the distance between rows in elements. `data == nullptr` means "absent".
struct View {
    void* data = nullptr;
    Dtype dtype = Dtype::f32;
    int64_t rows = 0, cols = 0, ld = 0;

    FB_INLINE explicit operator bool() const { return data != nullptr; }
    template <class T>
    FB_INLINE T* row(int64_t r) const {
        return static_cast<T*>(data) + r * ld;
    }
};

}  // namespace fb
