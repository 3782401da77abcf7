// The two skinny products of LoRA, in which one dimension is the rank.
#include "simd/pack.h"
#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

constexpr int kUnitTokens = 24;             // tokens that a unit of lora_in owns
constexpr int kUnitDepth = 512;             // reduction steps between updates of the accumulators
constexpr int64_t kUnitProducts = 1 << 15;  // of lora_gradient, if there are so many: less does not pay for a thread
constexpr int kRankBlock = kLanes == 16 ? 8 : 4;

// acc (M, R) += x (M, depth) a (R, depth)^T, with each sum spread over the lanes.
template <int M, int R, class X>
FB_INLINE void dot_rows(const X* x, int64_t ldx, const float* a, int64_t lda, int64_t depth, Vec* acc, int64_t ldacc) {
    Vec local[M][R];
    for (int i = 0; i < M; i++)
        for (int j = 0; j < R; j++) local[i][j] = acc[i * ldacc + j];
    int64_t p = 0;
    for (; p + kLanes <= depth; p += kLanes) {
        Vec row[M];
        for (int i = 0; i < M; i++) row[i] = load(x + i * ldx + p);
        for (int j = 0; j < R; j++) {
            const Vec factor = load(a + j * lda + p);
            for (int i = 0; i < M; i++) local[i][j] += row[i] * factor;
        }
    }
    if (p < depth)
        for (int j = 0; j < R; j++) {
            const Vec factor = load_part(a + j * lda + p, depth - p);
            for (int i = 0; i < M; i++) local[i][j] += load_part(x + i * ldx + p, depth - p) * factor;
        }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < R; j++) acc[i * ldacc + j] = local[i][j];
}

// Bytes for a vector of sums per cell, and for the cells.
int64_t in_scratch(int64_t rows, int64_t rank) {
    return round_up(rows * rank, kLanes) * int64_t(sizeof(Vec) + sizeof(float));
}

// Bytes for dh in float32, scaled.
int64_t gradient_scratch(int64_t tokens, int64_t rank) { return tokens * rank * 4; }

template <class X>
void lora_in_rows(View x, View a, float scale, View h, bool accumulate, int64_t t0, int64_t t1) {
    const int64_t rank = a.rows, cells = (t1 - t0) * rank, padded = round_up(cells, kLanes);
    Vec* acc = static_cast<Vec*>(thread_scratch(size_t(in_scratch(t1 - t0, rank))));
    std::memset(static_cast<void*>(acc), 0, size_t(padded) * sizeof(Vec));
    for (int64_t p = 0; p < x.cols; p += kUnitDepth) {
        const int64_t depth = std::min<int64_t>(kUnitDepth, x.cols - p);
        for (int64_t t = t0; t < t1; t += 3)
            with_count<3>(int(std::min<int64_t>(3, t1 - t)), [&](auto height) {
                for (int64_t j = 0; j < rank; j += kRankBlock)
                    with_count<kRankBlock>(int(std::min<int64_t>(kRankBlock, rank - j)), [&](auto width) {
                        dot_rows<height(), width()>(x.row<X>(t) + p, x.ld, a.row<float>(j) + p, a.ld, depth,
                                                    acc + (t - t0) * rank + j, rank);
                    });
            });
    }
    float* result = reinterpret_cast<float*>(acc + padded);
    for (int64_t cell = 0; cell < cells; cell += kLanes) {
        Vec group[kLanes];
        for (int i = 0; i < kLanes; i++) group[i] = acc[cell + i];
        store(result + cell, lane_sums(group) * scale);
    }
    by_dtype(h.dtype, [&](auto* tag) {
        using H = std::remove_pointer_t<decltype(tag)>;
        const auto write = [&](H* out, const float* from, int64_t count) {
            for_lanes(count, [&](auto get, auto put) { put(out, accumulate ? get(out) + get(from) : get(from)); });
        };
        if (h.ld == rank) return write(h.row<H>(t0), result, cells);
        for (int64_t t = t0; t < t1; t++) write(h.row<H>(t), result + (t - t0) * rank, rank);
    });
}

// da (R, N vectors) += sum over tokens of dh[t, 0..R) x[t, strip]. Only `live` columns of the strip exist.
template <int R, int N, class X>
FB_INLINE void outer_strip(const float* dh, int64_t rank, View x, int64_t col, float* out) {
    Vec acc[R][N];
    for (int j = 0; j < R; j++)
        for (int v = 0; v < N; v++) acc[j][v] = Vec{};
    for (int64_t t = 0; t < x.rows; t++) {
        Vec row[N];
        for (int v = 0; v < N; v++) row[v] = load(x.row<X>(t) + col + v * kLanes);
        for (int j = 0; j < R; j++) {
            const Vec factor = splat(dh[t * rank + j]);
            for (int v = 0; v < N; v++) acc[j][v] += factor * row[v];
        }
    }
    for (int j = 0; j < R; j++)
        for (int v = 0; v < N; v++) store(out + (j * N + v) * kLanes, acc[j][v]);
}

}  // namespace

void lora_in(View x, View a, float scale, View h, bool accumulate) {
    parallel_for((x.rows + kUnitTokens - 1) / kUnitTokens, [&](int64_t unit) {
        const int64_t t0 = unit * kUnitTokens, t1 = std::min(x.rows, t0 + kUnitTokens);
        by_dtype(x.dtype, [&](auto* tag) {
            lora_in_rows<std::remove_pointer_t<decltype(tag)>>(x, a, scale, h, accumulate, t0, t1);
        });
    });
}

void lora_gradient(View dh, View x, float scale, View da, bool accumulate) {
    constexpr int kVectors = 2, kStrip = kVectors * kLanes;
    const int64_t rank = dh.cols, strips = (x.cols + kStrip - 1) / kStrip;
    const int64_t per_strip = std::max<int64_t>(1, dh.rows * rank * kStrip);
    const int64_t per_unit = std::max<int64_t>(4, kUnitProducts / per_strip);  // strips
    parallel_for((strips + per_unit - 1) / per_unit, [&](int64_t unit) {
        float* factors = static_cast<float*>(thread_scratch(size_t(gradient_scratch(dh.rows, rank))));
        by_dtype(dh.dtype, [&](auto* tag) {
            using H = std::remove_pointer_t<decltype(tag)>;
            const auto widen = [&](const H* from, float* to, int64_t count) {
                for_lanes(count, [&](auto get, auto put) { put(to, get(from) * scale); });
            };
            if (dh.ld == rank) return widen(dh.row<H>(0), factors, dh.rows * rank);
            for (int64_t t = 0; t < dh.rows; t++) widen(dh.row<H>(t), factors + t * rank, rank);
        });
        by_dtype(x.dtype, [&](auto* tag) {
            using X = std::remove_pointer_t<decltype(tag)>;
            const int64_t last = std::min(strips, (unit + 1) * per_unit);
            for (int64_t strip = unit * per_unit; strip < last; strip++) {
                const int64_t col = strip * kStrip, live = std::min<int64_t>(kStrip, x.cols - col);
                for (int64_t j = 0; j < rank; j += kRankBlock)
                    with_count<kRankBlock>(int(std::min<int64_t>(kRankBlock, rank - j)), [&](auto ranks) {
                        constexpr int R = ranks();
                        float result[R * kStrip];
                        if (live == kStrip) {
                            outer_strip<R, kVectors, X>(factors + j, rank, x, col, result);
                        } else {
                            std::memset(result, 0, sizeof result);
                            for (int64_t t = 0; t < x.rows; t++)
                                for (int i = 0; i < R; i++)
                                    for (int64_t c = 0; c < live; c++)
                                        result[i * kStrip + c] +=
                                            factors[t * rank + j + i] * load1(x.row<X>(t) + col + c);
                        }
                        for (int i = 0; i < R; i++) {
                            float* out = da.row<float>(j + i) + col;
                            const float* sums = result + i * kStrip;
                            for_lanes(live, [&](auto get, auto put) {
                                put(out, accumulate ? get(out) + get(sums) : get(sums));
                            });
                        }
                    });
            }
        });
    });
}

Cost lora_in_cost(int64_t tokens, int64_t inputs, int64_t rank) {
    return {product_flops(tokens, inputs, rank), in_scratch(std::min<int64_t>(tokens, kUnitTokens), rank)};
}

Cost lora_gradient_cost(int64_t tokens, int64_t inputs, int64_t rank) {
    return {product_flops(tokens, inputs, rank), inputs > 0 ? gradient_scratch(tokens, rank) : 0};
}

}  // namespace fb::FB_ISA
