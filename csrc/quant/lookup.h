// Code shared by the lookup types: a code is the number of a point in a grid, four or eight weights at once. Their
// signs are stored separately or are part of the grid.
#pragma once
#include <type_traits>

#include "quant/grids.h"
#include "quant/level_blocks.h"

namespace fb::FB_SET::formats {

// The representation of a point: eight levels of a byte each, or four in float32, which are as quick to assemble as to
// widen.
struct Eight {
    static constexpr int kSize = 8;
    uint64_t bytes = 0;
    FB_INLINE constexpr void set(int i, int level) { bytes |= uint64_t(uint8_t(level)) << 8 * i; }
    FB_INLINE constexpr int at(int i) const { return int8_t(bytes >> 8 * i); }
};
struct Four {
    static constexpr int kSize = 4;
    float levels[4] = {};
    FB_INLINE constexpr void set(int i, int level) { levels[i] = float(level); }
    FB_INLINE constexpr int at(int i) const { return int(levels[i]); }
};

// A grid: the digits of its points, each of which is a level.
template <class Point, int count, int base>
struct Grid {
    Point points[count] = {};

    constexpr Grid(const char* bits, const int (&values)[base]) {
        int cube = 1, found = 0;
        for (int i = 0; i < Point::kSize; i++) cube *= base;
        for (int point = 0; point < cube; point++) {
            const char c = bits[point / 4];
            if (((c <= '9' ? c - '0' : c - 'a' + 10) >> point % 4 & 1) == 0) continue;
            for (int i = 0, rest = point; i < Point::kSize; i++, rest /= base)
                points[found].set(i, values[rest % base]);
            found++;
        }
    }
};

inline constexpr int kThree[] = {8, 25, 43}, kEightEven[] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr int kEightOdd[] = {1, 3, 5, 7, 9, 11, 13, 15}, kSigned[] = {-8, 0, 8};
inline constexpr Grid<Eight, 2048, 3> kIQ1_SGrid(kIQ1_SPoints, kSigned);
inline constexpr Grid<Eight, 256, 3> kIQ2_XXSGrid(kIQ2_XXSPoints, kThree);
inline constexpr Grid<Eight, 512, 3> kIQ2_XSGrid(kIQ2_XSPoints, kThree);
inline constexpr Grid<Eight, 1024, 3> kIQ2_SGrid(kIQ2_SPoints, kThree);
inline constexpr Grid<Four, 256, 8> kIQ3_XXSGrid(kIQ3_XXSPoints, kEightEven);
inline constexpr Grid<Four, 512, 8> kIQ3_SGrid(kIQ3_SPoints, kEightOdd);

// The masks that change the signs of eight levels: -1 where bit i is set, 0 elsewhere. In the second table the eighth
// bit makes the number of negative ones even.
template <int bits>
struct Signs {
    Eight masks[1 << bits] = {};

    constexpr Signs() {
        for (int code = 0; code < 1 << bits; code++)
            for (int i = 0, sum = 0; i < 8; i++) {
                const int negative = i < bits ? code >> i & 1 : sum & 1;
                sum += negative;
                masks[code].set(i, -negative);
            }
    }
};
inline constexpr Signs<8> kSigns;
inline constexpr Signs<7> kEvenSigns;

#if defined(FB_ISA)
// Numbers [v * kLanes, (v + 1) * kLanes) of a run, where entry(k) is its k-th group of eight, or of four.
template <class Entry>
FB_INLINE auto lanes_of(const Entry& entry, int v) {
    using Kind = std::decay_t<decltype(entry(0))>;
    if constexpr (std::is_same_v<Kind, Eight>) {
        if constexpr (kLanes <= 8) {
            const Eight& one = entry(v * kLanes / 8);
            return widen(reinterpret_cast<const int8_t*>(&one.bytes) + v * kLanes % 8);
        } else {
#if defined(__AVX512F__)
            const __m128i two = _mm_set_epi64x(int64_t(entry(2 * v + 1).bytes), int64_t(entry(2 * v).bytes));
            return (IVec)_mm512_cvtepi8_epi32(two);
#endif
        }
    } else {
        const auto four = [&](int k) { return entry(v * kLanes / 4 + k).levels; };
#if defined(__AVX512F__)
        const auto eight = [&](int k) { return _mm256_set_m128(_mm_loadu_ps(four(k + 1)), _mm_loadu_ps(four(k))); };
        return (Vec)_mm512_insertf32x8(_mm512_castps256_ps512(eight(0)), eight(2), 1);
#elif defined(__AVX2__)
        return (Vec)_mm256_set_m128(_mm_loadu_ps(four(1)), _mm_loadu_ps(four(0)));
#else
        static_assert(kLanes == 4);
        return load(four(0));
#endif
    }
}

// The levels of a run: its points with their signs.
template <class Point, class Mask>
FB_INLINE Floats signed_levels(const Point& point, const Mask& mask) {
    return run_of([&](int v) {
        const IVec signs = lanes_of(mask, v);
        const auto sizes = lanes_of(point, v);
        if constexpr (std::is_same_v<decltype(sizes), const Vec>) return (Vec)((IVec)sizes ^ signs << 31);
        else return to_float((sizes ^ signs) - signs);
    });
}
#endif

// The number of weights in a point of a type.
template <class Type>
inline constexpr int kPointSize = std::decay_t<decltype(Type::point(nullptr, 0))>::kSize;

// Blocks of 256 weights whose levels are points of a grid with separate signs. A type defines
//
//   point(block, k)   the k-th point of a block, of four or eight weights
//   mask(block, k)    the mask that changes the signs of the k-th eight weights
template <class Type>
struct LookupBlocks : LevelBlocks<Type> {
    static constexpr bool has_bytes = false;
    static constexpr Field scale = {Number::f16, 0}, offset = kNoField;
    static constexpr double centre = 0;

    static FB_INLINE int level(const uint8_t* block, int j) {
        const int size = Type::point(block, j / kPointSize<Type>).at(j % kPointSize<Type>);
        return Type::mask(block, j / 8).at(j % 8) ? -size : size;
    }
#if defined(FB_ISA)
    static FB_INLINE Floats levels(const uint8_t* block, int i) {
        return signed_levels([&](int k) -> auto& { return Type::point(block, i * 32 / kPointSize<Type> + k); },
                             [&](int k) -> auto& { return Type::mask(block, i * 4 + k); });
    }
#endif
};

}  // namespace fb::FB_SET::formats
