// Register-tiled micro-kernels: a tile of C stays in registers while the reduction runs.
//
// Sums start from zero and are added to C at the end: the reduction is then a sum of short sums, whose rounding error
// grows with their length and their number, not with the product of the two.
#pragma once
#include "simd/isa.h"

namespace fb::FB_ISA {

constexpr int kTileRows = 6;
constexpr int kTileCols = kRegisterVectors * kLanes;

// C (M, N vectors) (+)= A (M, k) B (k, N vectors). A's element (i, p) is a[i * row_stride + p * k_stride]: a broadcast
// does not care which way A lies. B's row p starts at b[p * ldb].
template <int M, int N>
FB_INLINE void tile_f32(int64_t k, const float* a, int64_t row_stride, int64_t k_stride, const float* b, int64_t ldb,
                        float* c, int64_t ldc, bool accumulate) {
    Vec acc[M][N];
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) acc[i][j] = Vec{};
    for (int64_t p = 0; p < k; p++) {
        Vec row[N];
        for (int j = 0; j < N; j++) row[j] = load(b + p * ldb + j * kLanes);
        for (int i = 0; i < M; i++) {
            const Vec value = splat(a[i * row_stride + p * k_stride]);
            for (int j = 0; j < N; j++) acc[i][j] += value * row[j];
        }
    }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float* cell = c + i * ldc + j * kLanes;
            store(cell, accumulate ? load(cell) + acc[i][j] : acc[i][j]);
        }
}

// The same over pairs: A (M, 2k) bf16 rows with consecutive pairs, B (k, N vectors) of bf16 pairs.
template <int M, int N>
FB_INLINE void tile_bf16(int64_t pairs, const uint16_t* a, int64_t row_stride, const uint32_t* b, int64_t ldb, float* c,
                         int64_t ldc, bool accumulate) {
    Vec acc[M][N];
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) acc[i][j] = Vec{};
    for (int64_t p = 0; p < pairs; p++) {
        UVec row[N];
        for (int j = 0; j < N; j++) row[j] = load_raw<UVec>(b + p * ldb + j * kLanes);
        for (int i = 0; i < M; i++) {
            uint32_t pair;
            __builtin_memcpy(&pair, a + i * row_stride + 2 * p, 4);
            const UVec value = pair - UVec{};
            for (int j = 0; j < N; j++) acc[i][j] = dot_pairs(acc[i][j], value, row[j]);
        }
    }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float* cell = c + i * ldc + j * kLanes;
            store(cell, accumulate ? load(cell) + acc[i][j] : acc[i][j]);
        }
}

// Calls body with a compile-time count 1 .. Max.
template <int Max, class Body>
FB_INLINE void with_count(int count, const Body& body) {
    if constexpr (Max > 1) {
        if (count < Max) return with_count<Max - 1>(count, body);
    }
    body(std::integral_constant<int, Max>{});
}

// C (m, n) (+)= A (m, k) B (k, n) for n a multiple of kLanes, all in cache: attention's products.
inline void small_gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t row_stride, int64_t k_stride,
                       const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
    for (int64_t j = 0; j < n; j += kTileCols) {
        const int vectors = int(std::min<int64_t>(kTileCols, n - j) / kLanes);
        with_count<kRegisterVectors>(vectors, [&](auto width) {
            for (int64_t i = 0; i < m; i += kTileRows) {
                const int rows = int(std::min<int64_t>(kTileRows, m - i));
                with_count<kTileRows>(rows, [&](auto height) {
                    tile_f32<height(), width()>(k, a + i * row_stride, row_stride, k_stride, b + j, ldb,
                                                c + i * ldc + j, ldc, accumulate);
                });
            }
        });
    }
}

}  // namespace fb::FB_ISA
