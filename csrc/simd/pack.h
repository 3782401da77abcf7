// Packs a rectangle of a stored weight into the panel that a micro-kernel reads: panel[strip][p][Tile::cols], where p
// counts the reduction in elements of Tile::steps, and a strip is one micro-kernel wide.
//
// "across": the reduction runs along the stored rows (forward, y = x W^T). Lanes are rows of W, so runs are transposed.
// "down": the reduction runs over the stored rows (backward, dx = dy W, and LoRA's second factor). Lanes are columns.
#pragma once
#include "simd/micro.h"
#include "simd/transpose.h"
#include "simd/unpack_bf16.h"

namespace fb::FB_ISA {

constexpr int kPanelCols = 64;

// A panel has room for a short tail after its depth (gemm.h).
template <class Tile>
constexpr int64_t kTail = Tile::depth / 4;
template <class Tile>
constexpr size_t panel_size() {  // in elements
    return size_t(2 * Tile::header + (Tile::depth + kTail<Tile>) / Tile::steps) * kPanelCols;
}

// Number of rows in a strip that holds `depth` reduction steps.
template <class Tile>
FB_INLINE int64_t strip_height(int64_t depth) {
    return round_up(depth, Tile::depth_step) / Tile::steps;
}

// A run of a row's weights as elements of a panel, in vectors.
template <class Tile, TensorType type>
struct PanelRun {
    using Element = typename Tile::Element;
    using Lanes = std::conditional_t<sizeof(Element) == 8, QVec, Vec>;
    static constexpr int kWeights = Tile::steps > 1 ? RunsOf<type>::kWeights : kRun;
    static constexpr int kElements = sizeof(Lanes) / sizeof(Element);  // per vector
    static constexpr int kVectors = kWeights / Tile::steps / kElements;
    Lanes v[kVectors];
};

// Loads the weights of a row from `first`, a multiple of the run. Weights beyond `count` are zero.
template <class Tile, TensorType type>
FB_INLINE PanelRun<Tile, type> load_run(const uint8_t* row, int64_t first, int64_t count) {
    PanelRun<Tile, type> out;
    if constexpr (Tile::steps > 1) {
        const RunsOf<type> run = bf16_part<type>(row, first, count);
        __builtin_memcpy(&out, &run, sizeof out);
    } else {
        Floats values{};
        if (count >= kRun) values = Format<type>::run(row, first / kRun);
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
    using Load = PanelRun<Tile, type>;
    constexpr int width = Load::kElements, vectors = Load::kVectors;
    const int64_t height = strip_height<Tile>(depth);
    const uint8_t* rows = w.row(row);
    for (int64_t lane = 0; lane < kPanelCols; lane += width, rows += width * w.row_bytes) {
        auto* strip = panel + lane / Tile::cols * height * Tile::cols + lane % Tile::cols;
        const int64_t live = std::min<int64_t>(width, lanes - lane);
        const auto pack_block = [&](int64_t p, auto whole) {
            typename Load::Lanes block[vectors][width];
            for (int i = 0; i < width; i++) {
                Load run{};
                if (whole || i < live)
                    run = load_run<Tile, type>(rows + i * w.row_bytes, first + p, whole ? Load::kWeights : depth - p);
                for (int v = 0; v < vectors; v++) block[v][i] = run.v[v];
            }
            for (int v = 0; v < vectors; v++) {
                transpose(block[v]);
                const int64_t at = p / Tile::steps + v * width;
                for (int64_t i = 0; i < (whole ? width : std::min<int64_t>(width, height - at)); i++)
                    __builtin_memcpy(strip + (at + i) * Tile::cols, &block[v][i], sizeof block[v][i]);
            }
        };
        int64_t p = 0;
        if (live == width)
            for (; p + Load::kWeights <= depth; p += Load::kWeights) pack_block(p, std::true_type());
        for (; p < depth; p += Load::kWeights) pack_block(p, std::false_type());
    }
}

// Lanes = columns [col, col + lanes) of w, reduction = rows [first, first + depth). col is a multiple of kPanelCols.
template <class Tile, TensorType type>
void pack_down(const Matrix& w, int64_t col, int64_t lanes, int64_t first, int64_t depth,
               typename Tile::Element* panel) {
    using Load = PanelRun<Tile, type>;
    constexpr int steps = Tile::steps, vectors = sizeof(Load) / sizeof(WVec);
    constexpr int width = sizeof(WVec) / sizeof(typename Tile::Element);  // columns that a finished vector holds
    const int64_t height = strip_height<Tile>(depth);
    const uint8_t* row = w.row(first);
    for (int64_t p = 0; p < height; p++, row += steps * w.row_bytes)
        for (int64_t lane = 0; lane < kPanelCols; lane += Load::kWeights) {
            WVec columns[vectors][steps];
            unrolled<steps>([&](auto s) {
                const int64_t live = steps * p + s < depth ? lanes - lane : 0;
                const Load run = load_run<Tile, type>(row + s * w.row_bytes, col + lane, live);
                for (int v = 0; v < vectors; v++)
                    __builtin_memcpy(&columns[v][s], (const char*)&run + v * sizeof(WVec), sizeof(WVec));
            });
            for (int v = 0; v < vectors; v++) {
                if constexpr (steps > 1) interleave(columns[v]);
                for (int s = 0; s < steps; s++) {
                    const int64_t at = lane + (v * steps + s) * width;
                    __builtin_memcpy(panel + (at / Tile::cols * height + p) * Tile::cols + at % Tile::cols,
                                     &columns[v][s], sizeof(WVec));
                }
            }
        }
}

}  // namespace fb::FB_ISA
