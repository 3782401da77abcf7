// Packing a rectangle of a stored weight into the panel a micro-kernel reads: panel[strip][p][kTileCols], where p runs
// over the reduction (pairs of it for bf16) and a strip is one micro-kernel wide.
//
// "across": the reduction runs along the stored rows (forward, y = x W^T): lanes are rows of W, so runs are transposed.
// "down": the reduction runs over the stored rows (backward, dx = dy W, and LoRA's second factor): lanes are columns.
#pragma once
#include "simd/micro.h"
#include "simd/transpose.h"
#include "simd/unpack_bf16.h"

namespace fb::FB_ISA {

constexpr int kPanelCols = 64;

// One element of a panel: a float, or two bf16 of consecutive reduction steps.
template <bool pairs>
struct PanelElement {
    using type = float;
    static constexpr int steps = 1;    // reduction steps an element holds
    static constexpr int depth = 128;  // reduction steps a panel holds: 32 KB
};
template <>
struct PanelElement<true> {
    using type = uint32_t;
    static constexpr int steps = 2;
    static constexpr int depth = 256;
};

template <bool pairs>
constexpr size_t panel_bytes() {
    return size_t(PanelElement<pairs>::depth / PanelElement<pairs>::steps) * kPanelCols * 4;
}

template <int high>
struct Interleave {  // of two runs of bf16: a0 b0 a1 b1 ...
    static constexpr int at(int i) { return i / 2 + high * kRun / 2 + i % 2 * kRun; }
};

// A run of 32 weights as rows of panel elements: floats, or pairs of bf16.
template <bool pairs>
struct PanelRun {
    static constexpr int kVectors = kRun / PanelElement<pairs>::steps / kLanes;
    Vec v[kVectors];
};

// The weights [first, first + count) of a row, `first` a multiple of 32; those beyond 32 are left, missing ones zero.
template <bool pairs, TensorType type>
FB_INLINE PanelRun<pairs> load_run(const uint8_t* row, int64_t first, int64_t count) {
    PanelRun<pairs> out;
    if constexpr (pairs) {
        const Run run = bf16_part<type>(row, first, count);
        __builtin_memcpy(&out, &run, sizeof out);
    } else {
        Floats values{};
        if (count >= kRun) values = unpack_run<type>(row, first / kRun);
        else if (count > 0) unpack<type>(row, first, count, reinterpret_cast<float*>(&values));
        __builtin_memcpy(&out, &values, sizeof out);
    }
    return out;
}

// Lanes = rows [row, row + lanes) of w, reduction = columns [first, first + depth), `first` a multiple of 32. Missing
// lanes and the odd half of a last pair are zero.
template <bool pairs, TensorType type>
void pack_across(const Matrix& w, int64_t row, int64_t lanes, int64_t first, int64_t depth, uint32_t* panel) {
    constexpr int steps = PanelElement<pairs>::steps, vectors = PanelRun<pairs>::kVectors;
    const int64_t height = (depth + steps - 1) / steps;  // panel rows
    const uint8_t* rows = w.row(row);
    for (int64_t lane = 0; lane < kPanelCols; lane += kLanes, rows += kLanes * w.row_bytes) {
        uint32_t* strip = panel + lane / kTileCols * height * kTileCols + lane % kTileCols;
        const int64_t live = std::min<int64_t>(kLanes, lanes - lane);
        for (int64_t p = 0; p < depth; p += kRun) {
            Vec block[vectors][kLanes];
            const auto fill = [&](int i, PanelRun<pairs> run) {
                for (int v = 0; v < vectors; v++) block[v][i] = run.v[v];
            };
            if (live == kLanes && depth - p >= kRun) {
                for (int i = 0; i < kLanes; i++)
                    fill(i, load_run<pairs, type>(rows + i * w.row_bytes, first + p, kRun));
            } else {
                for (int i = 0; i < kLanes; i++)
                    fill(i, i < live ? load_run<pairs, type>(rows + i * w.row_bytes, first + p, depth - p)
                                     : PanelRun<pairs>{});
            }
            for (int v = 0; v < vectors; v++) {
                transpose(block[v]);
                const int64_t at = p / steps + v * kLanes, count = std::min<int64_t>(kLanes, height - at);
                for (int64_t i = 0; i < count; i++)
                    store(reinterpret_cast<float*>(strip + (at + i) * kTileCols), block[v][i]);
            }
        }
    }
}

// Lanes = columns [col, col + lanes) of w, reduction = rows [first, first + depth). col is a multiple of kPanelCols.
template <bool pairs, TensorType type>
void pack_down(const Matrix& w, int64_t col, int64_t lanes, int64_t first, int64_t depth, uint32_t* panel) {
    constexpr int steps = PanelElement<pairs>::steps;
    const int64_t height = (depth + steps - 1) / steps;
    const uint8_t* row = w.row(first);
    for (int64_t p = 0; p < height; p++, row += steps * w.row_bytes) {
        for (int64_t lane = 0; lane < kPanelCols; lane += kRun) {
            alignas(64) uint32_t out[kRun];
            if constexpr (pairs) {
                const Run even = bf16_part<type>(row, col + lane, lanes - lane);
                const Run odd =
                    2 * p + 1 < depth ? bf16_part<type>(row + w.row_bytes, col + lane, lanes - lane) : Run{};
                const Run both[2] = {pick<Interleave<0>>(even, odd), pick<Interleave<1>>(even, odd)};
                __builtin_memcpy(out, both, sizeof out);
            } else {
                const PanelRun<false> run = load_run<false, type>(row, col + lane, lanes - lane);
                __builtin_memcpy(out, &run, sizeof out);
            }
            for (int i = 0; i < kRun; i += std::min(kRun, kTileCols))
                __builtin_memcpy(panel + ((lane + i) / kTileCols * height + p) * kTileCols + (lane + i) % kTileCols,
                                 out + i, std::min(kRun, kTileCols) * 4);
        }
    }
}

}  // namespace fb::FB_ISA
