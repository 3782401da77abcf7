// The micro-kernel of this instruction set for bf16 products, if it has one: Bf16Tile. micro.h documents its members.
#pragma once
#include "simd/micro.h"
#include "simd/transpose.h"

#if defined(__AVX512BF16__)

namespace fb::FB_ISA {

// Dot products of pairs (vdpbf16ps): each lane of a vector holds two steps of one column.
struct DotTile {
    using Operand = uint16_t;
    using Element = uint32_t;
    static constexpr int rows = kTileRows, row_step = 1, cols = kTileCols;
    static constexpr int header = 0, steps = 2, depth_step = 2, depth = 256;

    // x's rows in place; if rows or steps are missing, a copy with zeros for them.
    template <int height>
    FB_INLINE static Rows<uint16_t> operand(const View& x, int64_t row, int64_t live, int64_t first, int64_t count,
                                            uint16_t* buffer) {
        const uint16_t* source = x.row<uint16_t>(row) + first;
        if (live == height && count % depth_step == 0) return {source, x.ld};
        const int64_t stride = round_up(count, depth_step);
        std::memset(buffer, 0, size_t(height * stride) * 2);
        for (int64_t i = 0; i < live; i++) std::memcpy(buffer + i * stride, source + i * x.ld, size_t(count) * 2);
        return {buffer, stride};
    }

    template <int height>
    struct Sums : TileSums<height, kRegisterVectors> {
        FB_INLINE void add(int64_t count, Rows<uint16_t> a, const uint32_t* strip) {
            constexpr int N = kRegisterVectors;
            for (int64_t p = 0; p < count; p += 2, strip += cols) {
                UVec row[N];
                for (int j = 0; j < N; j++) row[j] = load_raw<UVec>(strip + j * kLanes);
                for (int i = 0; i < height; i++) {
                    uint32_t pair;
                    __builtin_memcpy(&pair, a.data + i * a.stride + p, 4);
                    const UVec value = pair - UVec{};
                    for (int j = 0; j < N; j++) {
                        Vec& sum = this->acc[i][j];
                        sum = (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)value, (__m512bh)row[j]);
                    }
                }
            }
        }
    };
};
using Bf16Tile = DotTile;

}  // namespace fb::FB_ISA

#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

namespace fb::FB_ISA {

// Products of 2 x 4 by 4 x 2 (bfmmla). A register holds four steps of two rows of x, or of two columns of the panel,
// and their product is two rows by two columns of C. 16 of the 32 registers hold sums, 8 the factors.
struct MatrixTile {
    using Operand = uint16_t;
    using Element = uint64_t;
    static constexpr int rows = 8, row_step = 2, cols = 8;
    static constexpr int header = 0, steps = 4, depth_step = 8, depth = 256;

    // Eight steps of a row; missing ones are zero.
    FB_INLINE static QVec eight(const uint16_t* row, int64_t count) {
        if (count >= 8) return load_raw<QVec>(row);
        uint16_t part[8] = {};
        for (int64_t p = 0; p < count; p++) part[p] = row[p];
        return load_raw<QVec>(part);
    }

    // buffer[four steps][pair of rows][2][4], in the order in which a strip reads it.
    template <int height>
    FB_INLINE static Rows<uint16_t> operand(const View& x, int64_t row, int64_t live, int64_t first, int64_t count,
                                            uint16_t* buffer) {
        for (int i = 0; i < height; i += 2) {
            const uint16_t* source = x.row<uint16_t>(row + i) + first;
            for (int64_t p = 0; p < count; p += 8) {
                QVec pair[2] = {eight(source + p, count - p),
                                i + 1 < live ? eight(source + x.ld + p, count - p) : QVec{}};
                transpose(pair);
                for (int half = 0; half < 2; half++)
                    __builtin_memcpy(buffer + (p + 4 * half) * height + 4 * i, &pair[half], 16);
            }
        }
        return {buffer, 0};
    }

    template <int height>
    struct Sums {
        static constexpr int M = height / 2, N = cols / 2;
        float32x4_t acc[M][N] = {};

        FB_INLINE void add(int64_t count, Rows<uint16_t> a, const uint64_t* strip) {
            for (int64_t p = 0; p < count; p += 4, strip += cols) {
                bfloat16x8_t row[M], column[N];
                for (int i = 0; i < M; i++) row[i] = load_raw<bfloat16x8_t>(a.data + p * height + 8 * i);
                for (int j = 0; j < N; j++) column[j] = load_raw<bfloat16x8_t>(strip + 2 * j);
                for (int i = 0; i < M; i++)
                    for (int j = 0; j < N; j++) acc[i][j] = vbfmmlaq_f32(acc[i][j], row[i], column[j]);
            }
        }

        FB_INLINE void write(float* c, int64_t ldc, bool accumulate) const {
            for (int i = 0; i < M; i++)
                for (int j = 0; j < N; j += 2) {  // two squares side by side: two rows of four
                    QVec pair[2] = {(QVec)acc[i][j], (QVec)acc[i][j + 1]};
                    transpose(pair);
                    for (int half = 0; half < 2; half++) {
                        float* cell = c + (2 * i + half) * ldc + 2 * j;
                        store(cell, accumulate ? load(cell) + (Vec)pair[half] : (Vec)pair[half]);
                    }
                }
        }
    };
};
using Bf16Tile = MatrixTile;

}  // namespace fb::FB_ISA

#else

namespace fb::FB_ISA {
using Bf16Tile = void;  // bf16 is computed in fp32
}

#endif
