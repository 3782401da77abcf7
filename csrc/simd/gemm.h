// The product every linear layer is made of: out (T, N) (+)= sum over segments of x_s (T, R_s) W_s, where W_s is a
// stored weight read along or down its rows. Weights are unpacked into a panel that fits the first-level cache and
// used for all T rows at once, so each weight is unpacked exactly once a call.
#pragma once
#include "simd/pack.h"
#include "simd/rows.h"

namespace fb::FB_ISA {

struct Segment {
    View x;    // (T, R) operand
    Matrix w;  // across: (N, R); down: (R, N)
    bool across;
};

inline Matrix as_matrix(const View& dense) {  // float32 rows seen as a stored weight
    Matrix m;
    m.data = static_cast<const uint8_t*>(dense.data);
    m.row_bytes = dense.ld * 4;
    m.rows = dense.rows;
    m.cols = dense.cols;
    return m;
}

template <bool pairs>
void pack_panel(const Segment& s, int64_t col, int64_t lanes, int64_t first, int64_t depth, uint32_t* panel) {
    with_type(s.w.type, [&](auto type) {
        if (s.across) pack_across<pairs, type()>(s.w, col, lanes, first, depth, panel);
        else pack_down<pairs, type()>(s.w, col, lanes, first, depth, panel);
    });
}

// x rows [row, row + height), columns [first, first + depth) as the micro-kernel wants them: in place where possible,
// otherwise converted into `buffer` (kTileRows * panel depth elements). Returns the first element; sets its stride.
template <bool pairs, class Operand>
FB_INLINE const Operand* operand_rows(const View& x, int64_t row, int height, int64_t first, int64_t depth,
                                      Operand* buffer, int64_t& stride) {
    if constexpr (pairs) {
        stride = x.ld;
        const uint16_t* source = x.row<uint16_t>(row) + first;
        if (depth % 2 == 0) return source;
        stride = depth + 1;  // the odd half of the last pair must be a zero, not whatever lies behind the row
        for (int i = 0; i < height; i++) {
            std::memcpy(buffer + i * stride, source + i * x.ld, size_t(depth) * 2);
            buffer[i * stride + depth] = 0;
        }
        return buffer;
    } else {
        stride = x.ld;
        if (x.dtype == Dtype::f32) return x.row<float>(row) + first;
        stride = PanelElement<false>::depth;
        for (int i = 0; i < height; i++) {
            const uint16_t* source = x.row<uint16_t>(row + i) + first;
            for (int64_t p = 0; p < depth; p++) buffer[i * stride + p] = bf16_to_f32(source[p]);
        }
        return buffer;
    }
}

template <bool pairs, int height, class Operand>
FB_INLINE void run_tile(int64_t depth, const Operand* a, int64_t stride, const uint32_t* strip, float* c, int64_t ldc,
                        bool accumulate) {
    if constexpr (pairs)
        tile_bf16<height, kRegisterVectors>((depth + 1) / 2, a, stride, strip, kTileCols, c, ldc, accumulate);
    else
        tile_f32<height, kRegisterVectors>(depth, a, stride, 1, reinterpret_cast<const float*>(strip), kTileCols, c,
                                           ldc, accumulate);
}

// The stored bytes the next panel will be packed from. They are touched while the current one is multiplied, a few
// rows a tile: the strides are too long and the stretches too short for the hardware to run ahead by itself.
struct Ahead {
    const uint8_t* row = nullptr;
    int64_t rows = 0, row_bytes = 0, span = 0;

    FB_INLINE void fetch(int64_t count) {
        for (; count > 0 && rows > 0; count--, rows--, row += row_bytes)
            for (int64_t at = 0; at < span + 63; at += 64) __builtin_prefetch(row + at, 0, 2);
    }
};

FB_INLINE Ahead ahead_of(const Segment& s, int64_t col, int64_t lanes, int64_t first, int64_t depth) {
    const BlockShape block = block_shape(s.w.type);
    const int64_t row = s.across ? col : first, at = s.across ? first : col;
    const int64_t span = (s.across ? depth : lanes) * block.bytes / block.weights;
    return {s.w.row(row) + at * block.bytes / block.weights, s.across ? lanes : depth, s.w.row_bytes, span};
}

// One packed panel times rows [t0, t1) of x.
template <bool pairs>
void multiply_panel(const View& x, const uint32_t* panel, int64_t first, int64_t depth, View out, int64_t col,
                    int64_t lanes, int64_t t0, int64_t t1, bool add, Ahead ahead) {
    using Operand = std::conditional_t<pairs, uint16_t, float>;
    alignas(64) Operand buffer[kTileRows * (PanelElement<pairs>::depth + 2)];
    alignas(64) float edge[kTileRows * kTileCols];
    const int64_t strip_size = (depth + PanelElement<pairs>::steps - 1) / PanelElement<pairs>::steps * kTileCols;
    const int64_t share = ahead.rows * kTileRows / (t1 - t0) + 1;  // weight rows to touch a tile
    for (int64_t t = t0; t < t1; t += kTileRows) {
        ahead.fetch(share);
        if (!add)  // the first pass over the output: have the next tile's lines at hand when they are written
            for (int64_t i = t + kTileRows; i < std::min(t + 2 * kTileRows, t1); i++)
                for (int64_t j = 0; j < lanes; j += 16) __builtin_prefetch(out.row<float>(i) + col + j, 1);
        with_count<kTileRows>(int(std::min<int64_t>(kTileRows, t1 - t)), [&](auto height) {
            constexpr int rows = height();
            int64_t stride;
            const Operand* a = operand_rows<pairs>(x, t, rows, first, depth, buffer, stride);
            for (int64_t j = 0; j < lanes; j += kTileCols) {
                const uint32_t* strip = panel + j / kTileCols * strip_size;
                float* c = out.row<float>(t) + col + j;
                const int64_t live = std::min<int64_t>(kTileCols, lanes - j);
                if (live == kTileCols) {
                    run_tile<pairs, rows>(depth, a, stride, strip, c, out.ld, add);
                    continue;
                }
                if (add)
                    for (int i = 0; i < rows; i++) std::copy_n(c + i * out.ld, live, edge + i * kTileCols);
                run_tile<pairs, rows>(depth, a, stride, strip, edge, kTileCols, add);
                for (int i = 0; i < rows; i++) std::copy_n(edge + i * kTileCols, live, c + i * out.ld);
            }
        });
    }
}

// How the output is cut. A unit is a group of panels; over each stretch of the reduction its panels are packed once and
// take turns over blocks of rows, so that what they share, a block's stretch of x, comes from the second-level cache
// and a panel from the first. The sizes suit the smallest second-level cache about (512 KB); larger ones gain nothing
// where there is more (docs/decisions/gemm-packing.md).
constexpr int64_t kBlockRows = 43 * kTileRows, kGroupPanels = 4;

// Rows [t0, t1), columns [begin, end) of the product.
template <bool pairs>
void gemm_unit(const Segment* segments, int count, const float* bias, View out, bool accumulate, int64_t begin,
               int64_t end, int64_t t0, int64_t t1) {
    constexpr int depth_max = PanelElement<pairs>::depth;
    auto* panels = static_cast<uint32_t*>(thread_scratch(kGroupPanels * panel_bytes<pairs>()));
    if (bias)
        for (int64_t t = t0; t < t1; t++)
            for_lanes(end - begin, [&](auto get, auto put) {
                float* cell = out.row<float>(t) + begin;
                put(cell, accumulate ? get(cell) + get(bias + begin) : get(bias + begin));
            });
    bool add = accumulate || bias;
    for (int s = 0; s < count; s++) {
        const Segment& segment = segments[s];
        const int64_t reduction = segment.x.cols;
        for (int64_t first = 0; first < reduction; first += depth_max) {
            const int64_t depth = std::min<int64_t>(depth_max, reduction - first);
            for (int64_t t = t0; t < t1; t += kBlockRows)
                for (int64_t col = begin; col < end; col += kPanelCols) {
                    const int64_t lanes = std::min<int64_t>(kPanelCols, end - col);
                    uint32_t* panel = panels + (col - begin) / kPanelCols * int64_t(panel_bytes<pairs>() / 4);
                    Ahead ahead;
                    if (t == t0) {
                        pack_panel<pairs>(segment, col, lanes, first, depth, panel);
                        const bool turn = col + kPanelCols >= end;  // to the next stretch
                        const int64_t next_col = turn ? begin : col + kPanelCols, next = turn ? first + depth : first;
                        if (next < reduction)
                            ahead = ahead_of(segment, next_col, std::min<int64_t>(kPanelCols, end - next_col), next,
                                             std::min<int64_t>(depth_max, reduction - next));
                    }
                    multiply_panel<pairs>(segment.x, panel, first, depth, out, col, lanes, t,
                                          std::min(t1, t + kBlockRows), add, ahead);
                }
            add = true;
        }
    }
    if (!add)  // no reduction at all
        for (int64_t t = t0; t < t1; t++) std::fill_n(out.row<float>(t) + begin, end - begin, 0.0f);
}

template <bool pairs>
void gemm_all(const Segment* segments, int count, const float* bias, View out, bool accumulate) {
    const int64_t panels = (out.cols + kPanelCols - 1) / kPanelCols, workers = threads();
    // Every worker gets as many whole panels, in rounds of equal groups. The panels left over are cut along T, so that
    // nobody waits for the last one.
    const bool cut = out.rows >= 2 * kTileRows;
    const int64_t owners = cut ? workers : 1, group = cut ? kGroupPanels : 1;
    const int64_t share = panels / owners, rounds = (share + group - 1) / group;
    const int64_t groups = rounds * owners, rest = panels - share * owners;
    const int64_t piece_rows = round_up((out.rows + workers - 1) / workers, kTileRows);
    parallel_for(groups + rest * workers, [&](int64_t unit) {
        int64_t begin, end, t0 = 0, t1 = out.rows;
        if (unit < groups) {
            const int64_t round = unit / owners, first = unit % owners * share;
            begin = first + share * round / rounds;
            end = first + share * (round + 1) / rounds;
        } else {
            const int64_t piece = (unit - groups) % workers;
            begin = share * owners + (unit - groups) / workers;
            end = begin + 1;
            t0 = std::min(out.rows, piece * piece_rows);
            t1 = std::min(out.rows, t0 + piece_rows);
        }
        if (t0 < t1)
            gemm_unit<pairs>(segments, count, bias, out, accumulate, begin * kPanelCols,
                             std::min(out.cols, end * kPanelCols), t0, t1);
    });
}

inline void gemm(const Segment* segments, int count, const float* bias, View out, bool accumulate) {
    if constexpr (kHasBf16Dot) {
        if (segments[0].x.dtype == Dtype::bf16) return gemm_all<true>(segments, count, bias, out, accumulate);
    }
    gemm_all<false>(segments, count, bias, out, accumulate);
}

}  // namespace fb::FB_ISA
