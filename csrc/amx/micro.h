// The micro-kernel on AMX tiles, with the memory layout they ask for. simd/micro.h says what its members mean.
//
// It is written against `Tiles` of the header FB_TILES: the hardware's, or, in the kernel tests, one in plain C++ that
// computes the same.
#pragma once
#include FB_TILES

namespace fb::FB_ISA {

// C (32, 32) in four tiles; two tiles of x, 16 rows by 32 steps, and two of the panel, 16 pairs of steps by 16 columns,
// make up the eight. A strip's row is a pair of steps of each column, so its tiles are loaded as they lie.
struct AmxTile {
    using Operand = uint16_t;
    using Element = uint32_t;
    using Use = Tiles::Use;
    static constexpr int rows = 32, row_step = 16, cols = 32;
    static constexpr int header = 0, steps = 2, depth_step = 32, depth = 256;

    template <int height>
    FB_INLINE static Rows<uint16_t> operand(const View& x, int64_t row, int64_t live, int64_t first, int64_t count,
                                            uint16_t* buffer) {
        return whole_rows<AmxTile, height>(x, row, live, first, count, buffer);
    }

    template <int height>
    class Sums {
    public:
        FB_INLINE void add(int64_t count, Rows<uint16_t> a, const uint32_t* strip) {
            for (int64_t p = 0; p < count; p += 32, strip += 16 * cols) {
                tiles_.load_b<0>(strip, cols * 4);
                tiles_.load_b<1>(strip + 16, cols * 4);
                tiles_.load_a<0>(a.data + p, a.stride * 2);
                tiles_.dot<0, 0>();
                tiles_.dot<0, 1>();
                if constexpr (two) {
                    tiles_.load_a<1>(a.data + 16 * a.stride + p, a.stride * 2);
                    tiles_.dot<1, 0>();
                    tiles_.dot<1, 1>();
                }
            }
        }

        FB_INLINE void write(float* c, int64_t ldc, bool accumulate) {
            write<0, 0>(c, ldc, accumulate);
            write<0, 1>(c, ldc, accumulate);
            if constexpr (two) {
                write<1, 0>(c, ldc, accumulate);
                write<1, 1>(c, ldc, accumulate);
            }
        }

    private:
        static constexpr bool two = height > 16;

        template <int i, int j>
        FB_INLINE void write(float* c, int64_t ldc, bool accumulate) {
            float* corner = c + 16 * i * ldc + 16 * j;
            if (!accumulate) return tiles_.store<i, j>(corner, ldc * 4);
            alignas(64) float sums[16 * 16];
            tiles_.store<i, j>(sums, 64);
            for (int r = 0; r < 16; r++)
                for (int k = 0; k < 16; k += kLanes)
                    store(corner + r * ldc + k, load(corner + r * ldc + k) + load(sums + 16 * r + k));
        }

        Tiles tiles_;
    };
};

}  // namespace fb::FB_ISA
