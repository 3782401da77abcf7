// Register-tiled micro-kernels: a tile of C stays in registers during the reduction.
//
// Sums start from zero and are added to C at the end. So the reduction is a sum of short sums, whose rounding error
// grows with their length and their number, not with the product of both.
#pragma once
#include "simd/isa.h"

namespace fb::FB_ISA {

constexpr int kTileRows = 6;  // rows of a float tile
constexpr int kTileCols = kRegisterVectors * kLanes;

// A tile of C (M, N vectors): the sums of its products.
template <int M, int N>
struct TileSums {
    Vec acc[M][N] = {};

    // += A (M, k) B (k, N vectors). Element (i, p) of A is a[i * row_stride + p * k_stride]; broadcasting works for
    // either layout. Row p of B starts at b[p * ldb].
    FB_INLINE void add(int64_t k, const float* a, int64_t row_stride, int64_t k_stride, const float* b, int64_t ldb) {
        for (int64_t p = 0; p < k; p++) {
            Vec row[N];
            for (int j = 0; j < N; j++) row[j] = load(b + p * ldb + j * kLanes);
            for (int i = 0; i < M; i++) {
                const Vec value = splat(a[i * row_stride + p * k_stride]);
                for (int j = 0; j < N; j++) acc[i][j] += value * row[j];
            }
        }
    }

    FB_INLINE void write(float* c, int64_t ldc, bool accumulate) const {
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                float* cell = c + i * ldc + j * kLanes;
                store(cell, accumulate ? load(cell) + acc[i][j] : acc[i][j]);
            }
    }
};

// Calls body with a compile-time count from 1 to Max.
template <int Max, class Body>
FB_INLINE void with_count(int count, const Body& body) {
    if constexpr (Max > 1) {
        if (count < Max) return with_count<Max - 1>(count, body);
    }
    body(std::integral_constant<int, Max>{});
}

// A (m, k) B (k, n) for n a multiple of kLanes, all in cache. finish(sums, i, j) gets each tile, at row i and column j.
template <class Finish>
FB_INLINE void small_products(int64_t m, int64_t n, int64_t k, const float* a, int64_t row_stride, int64_t k_stride,
                              const float* b, int64_t ldb, const Finish& finish) {
    for (int64_t j = 0; j < n; j += kTileCols) {
        const int vectors = int(std::min<int64_t>(kTileCols, n - j) / kLanes);
        with_count<kRegisterVectors>(vectors, [&](auto width) {
            for (int64_t i = 0; i < m; i += kTileRows) {
                const int rows = int(std::min<int64_t>(kTileRows, m - i));
                with_count<kTileRows>(rows, [&](auto height) {
                    TileSums<height(), width()> sums;
                    sums.add(k, a + i * row_stride, row_stride, k_stride, b + j, ldb);
                    finish(sums, i, j);
                });
            }
        });
    }
}

// C (m, n) (+)= A (m, k) B (k, n) for n a multiple of kLanes, all in cache: attention's products.
inline void small_gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t row_stride, int64_t k_stride,
                       const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
    small_products(m, n, k, a, row_stride, k_stride, b, ldb,
                   [&](const auto& sums, int64_t i, int64_t j) { sums.write(c + i * ldc + j, ldc, accumulate); });
}

// How a micro-kernel reads x: its first element, and the distance between rows if it is stored in rows.
template <class Operand>
struct Rows {
    const Operand* data;
    int64_t stride;
};

// The interface of a micro-kernel for packing and blocking:
//   rows, cols          its tile of C; it computes multiples of `row_step` rows
//   Operand, Element    what it reads from x and from a panel of weights: an Element holds `steps` reduction steps
//   depth, depth_step   reduction steps per panel; it computes multiples of depth_step, with zeros at the end
//   header              rows of a strip before its steps, for the micro-kernel's own use
//   operand<height>     x rows [row, row + live), columns [first, first + depth): in place if possible, otherwise
// copied
//                       to `buffer` (rows * depth elements). Rows up to `height` are missing or arbitrary
//   Sums<height>        C (height, cols) during the computation: `add` such rows times a strip of the panel, and
// `write`
struct FloatTile {
    using Operand = float;
    using Element = float;
    static constexpr int rows = kTileRows, row_step = 1, cols = kTileCols;
    static constexpr int header = 0, steps = 1, depth_step = 1, depth = 128;  // a panel of 64 columns: 32 KB

    template <int height>
    FB_INLINE static Rows<float> operand(const View& x, int64_t row, int64_t, int64_t first, int64_t count,
                                         float* buffer) {
        if (x.dtype == Dtype::f32) return {x.row<float>(row) + first, x.ld};
        for (int i = 0; i < height; i++) {
            const uint16_t* source = x.row<uint16_t>(row + i) + first;
            for (int64_t p = 0; p < count; p++) buffer[i * depth + p] = bf16_to_f32(source[p]);
        }
        return {buffer, depth};
    }

    template <int height>
    struct Sums : TileSums<height, kRegisterVectors> {
        FB_INLINE void add(int64_t count, Rows<float> a, const float* strip) {
            TileSums<height, kRegisterVectors>::add(count, a.data, a.stride, 1, strip, cols);
        }
    };
};

}  // namespace fb::FB_ISA
