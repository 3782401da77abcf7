// Packing a rectangle of a stored weight into the panel a micro-kernel reads: panel[strip][p][Tile::cols], where p runs
// over the reduction by elements of Tile::steps and a strip is one micro-kernel wide.
//
// "across": the reduction runs along the stored rows (forward, y = x W^T): lanes are rows of W, so runs are transposed.
// "down": the reduction runs over the stored rows (backward, dx = dy W, and LoRA's second factor): lanes are columns.
#pragma once
#include "simd/micro.h"
#include "simd/transpose.h"
#include "simd/unpack_bf16.h"

namespace fb::FB_ISA {

constexpr int kPanelCols = 64;

template <class Tile>
constexpr size_t panel_size() {  // in elements
    return size_t(Tile::depth / Tile::steps) * kPanelCols;
}

// Rows of a strip that holds `depth` reduction steps.
template <class Tile>
FB_INLINE int64_t strip_height(int64_t depth) {
    return round_up(depth, Tile::depth_step) / Tile::steps;
}

// A run of 32 weights as elements of a panel, in vectors.
template <class Tile>
struct PanelRun {
    using Element = typename Tile::Element;
    using Lanes = std::conditional_t<sizeof(Element) == 8, QVec, Vec>;
    static constexpr int kElements = sizeof(Lanes) / sizeof(Element);  // a vector
    static constexpr int kVectors = kRun / Tile::steps / kElements;
    Lanes v[kVectors];
};

// The weights [first, first + count) of a row, `first` a multiple of 32; those beyond 32 are left, missing ones zero.
template <class Tile, TensorType type>
FB_INLINE PanelRun<Tile> load_run(const uint8_t* row, int64_t first, int64_t count) {
    PanelRun<Tile> out;
    if constexpr (Tile::steps > 1) {
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
// lanes and steps are zero.
template <class Tile, TensorType type>
void pack_across(const Matrix& w, int64_t row, int64_t lanes, int64_t first, int64_t depth,
                 typename Tile::Element* panel) {
    constexpr int width = PanelRun<Tile>::kElements, vectors = PanelRun<Tile>::kVectors;
    const int64_t height = strip_height<Tile>(depth);
    const uint8_t* rows = w.row(row);
    for (int64_t lane = 0; lane < kPanelCols; lane += width, rows += width * w.row_bytes) {
        auto* strip = panel + lane / Tile::cols * height * Tile::cols + lane % Tile::cols;
        const int64_t live = std::min<int64_t>(width, lanes - lane);
        for (int64_t p = 0; p < depth; p += kRun) {
            typename PanelRun<Tile>::Lanes block[vectors][width];
            const auto fill = [&](int i, PanelRun<Tile> run) {
                for (int v = 0; v < vectors; v++) block[v][i] = run.v[v];
            };
            if (live == width && depth - p >= kRun) {
                for (int i = 0; i < width; i++) fill(i, load_run<Tile, type>(rows + i * w.row_bytes, first + p, kRun));
            } else {
                for (int i = 0; i < width; i++)
                    fill(i, i < live ? load_run<Tile, type>(rows + i * w.row_bytes, first + p, depth - p)
                                     : PanelRun<Tile>{});
            }
            for (int v = 0; v < vectors; v++) {
                transpose(block[v]);
                const int64_t at = p / Tile::steps + v * width, count = std::min<int64_t>(width, height - at);
                for (int64_t i = 0; i < count; i++)
                    __builtin_memcpy(strip + (at + i) * Tile::cols, &block[v][i], sizeof block[v][i]);
            }
        }
    }
}

// Lanes = columns [col, col + lanes) of w, reduction = rows [first, first + depth). col is a multiple of kPanelCols.
template <class Tile, TensorType type>
void pack_down(const Matrix& w, int64_t col, int64_t lanes, int64_t first, int64_t depth,
               typename Tile::Element* panel) {
    constexpr int steps = Tile::steps, piece = std::min(kRun, Tile::cols);
    const int64_t height = strip_height<Tile>(depth);
    const uint8_t* row = w.row(first);
    for (int64_t p = 0; p < height; p++, row += steps * w.row_bytes) {
        for (int64_t lane = 0; lane < kPanelCols; lane += kRun) {
            alignas(64) typename Tile::Element out[kRun];
            if constexpr (steps > 1) {
                constexpr int parts = sizeof(Run) / sizeof(WVec);
                WVec columns[parts][steps];
                for (int s = 0; s < steps; s++) {
                    const Run run = steps * p + s < depth
                                        ? bf16_part<type>(row + s * w.row_bytes, col + lane, lanes - lane)
                                        : Run{};
                    WVec part[parts];
                    __builtin_memcpy(part, &run, sizeof run);
                    for (int i = 0; i < parts; i++) columns[i][s] = part[i];
                }
                for (int i = 0; i < parts; i++) interleave(columns[i]);
                __builtin_memcpy(out, columns, sizeof out);
            } else {
                const PanelRun<Tile> run = load_run<Tile, type>(row, col + lane, lanes - lane);
                __builtin_memcpy(out, &run, sizeof out);
            }
            for (int i = 0; i < kRun; i += piece)
                __builtin_memcpy(panel + ((lane + i) / Tile::cols * height + p) * Tile::cols + (lane + i) % Tile::cols,
                                 out + i, piece * sizeof out[0]);
        }
    }
}

}  // namespace fb::FB_ISA
