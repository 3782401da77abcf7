// The product that all linear layers use: out (T, N) (+)= sum over segments of x_s (T, R_s) W_s, where W_s is a stored
// weight read along or across its rows. Weights are unpacked into a panel that fits the first-level cache and is used
// for all T rows at once. So each weight is unpacked exactly once per call.
#pragma once
#include "simd/micro_bf16.h"
#include "simd/micro_fixed.h"
#include "simd/pack.h"
#include "simd/rows.h"

namespace fb::FB_ISA {

struct Segment {
    View x;    // (T, R) operand
    Matrix w;  // across: (N, R); down: (R, N)
    bool across;
};

inline Matrix as_matrix(const View& dense) {  // float32 rows as a stored weight
    Matrix m;
    m.data = static_cast<const uint8_t*>(dense.data);
    m.row_bytes = dense.ld * 4;
    m.rows = dense.rows;
    m.cols = dense.cols;
    return m;
}

// Whether the micro-kernel needs x and weights in a prepared form.
template <class Tile>
constexpr bool kPrepares = std::is_same_v<Tile, FixedTile>;

// Like pack_panel<FloatTile>, compiled once (simd/linear.cpp).
void pack_floats(const Segment& s, int64_t col, int64_t lanes, int64_t first, int64_t depth, float* panel);

template <class Tile>
void pack_panel(const Segment& s, int64_t col, int64_t lanes, int64_t first, int64_t depth,
                typename Tile::Element* panel, [[maybe_unused]] float* floats) {
    if constexpr (kPrepares<Tile>) {
        pack_floats(s, col, lanes, first, depth, floats);
        Tile::quantise(floats, depth, panel);
    } else {
        with_type(s.w.type, [&](auto type) {
            if (s.across) pack_across<Tile, type()>(s.w, col, lanes, first, depth, panel);
            else pack_down<Tile, type()>(s.w, col, lanes, first, depth, panel);
        });
    }
}

// The stored bytes from which the next panel will be packed. They are prefetched while the current panel is multiplied,
// a few rows per tile, because their strides are too long and their stretches too short for the hardware prefetcher.
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

// The content of a panel: a stretch of one segment, followed by a tail, which is all of the next segment if that is as
// short as LoRA's factor. So few steps do not justify another pass over the output.
struct Part {
    const Segment* segment;
    int64_t first, depth;
    int64_t start, strip;  // in elements of the panel: where its strips start, and the size of one
    View x;                // what the micro-kernel reads: the segment's x, or some of its rows in prepared form
    int64_t row0 = 0;      // the first row in x
};
struct Stretch {
    Part body, tail;  // tail.depth may be 0
};

template <class Tile>
FB_INLINE Part part_of(const Segment& segment, int64_t first, int64_t depth, int64_t start) {
    return {&segment, first, depth, start, (Tile::header + strip_height<Tile>(depth)) * Tile::cols, segment.x};
}

// Multiplies rows [t0, t1) of x by one packed panel.
template <class Tile>
void multiply_panel(const Stretch& stretch, const typename Tile::Element* panel, View out, int64_t col, int64_t lanes,
                    int64_t t0, int64_t t1, bool add, Ahead ahead) {
    const Part body = stretch.body, tail = stretch.tail;
    alignas(64) typename Tile::Operand buffers[2][Tile::rows * Tile::depth];
    alignas(64) float edge[Tile::rows * Tile::cols];
    const int64_t share = ahead.rows * Tile::rows / (t1 - t0) + 1;  // weight rows to prefetch per tile
    for (int64_t t = t0; t < t1; t += Tile::rows) {
        ahead.fetch(share);
        if (!add)  // first pass over the output: prefetch the next tile's lines before they are written
            for (int64_t i = t + Tile::rows; i < std::min(t + 2 * Tile::rows, t1); i++)
                for (int64_t j = 0; j < lanes; j += 16) __builtin_prefetch(out.row<float>(i) + col + j, 1);
        const int64_t rows = std::min<int64_t>(Tile::rows, t1 - t);
        constexpr int step = Tile::row_step;
        with_count<Tile::rows / step>(int((rows + step - 1) / step), [&](auto count) {
            constexpr int height = count() * step;
            const auto operand = [&](const Part& part, typename Tile::Operand* buffer) {
                return Tile::template operand<height>(part.x, t - part.row0, rows, part.first, part.depth, buffer);
            };
            const auto a = operand(body, buffers[0]), h = tail.depth ? operand(tail, buffers[1]) : a;
            for (int64_t j = 0; j < lanes; j += Tile::cols) {
                typename Tile::template Sums<height> sums;
                sums.add(body.depth, a, panel + j / Tile::cols * body.strip);
                if (tail.depth) sums.add(tail.depth, h, panel + tail.start + j / Tile::cols * tail.strip);
                float* c = out.row<float>(t) + col + j;
                const int64_t live = std::min<int64_t>(Tile::cols, lanes - j);
                if (live == Tile::cols && rows == height) {
                    sums.write(c, out.ld, add);
                    continue;
                }
                sums.write(edge, Tile::cols, false);
                for (int64_t i = 0; i < rows; i++)
                    for (int64_t k = 0; k < live; k++) {
                        float& cell = c[i * out.ld + k];
                        cell = add ? cell + edge[i * Tile::cols + k] : edge[i * Tile::cols + k];
                    }
            }
        });
    }
}

// How the output is cut. A unit is a group of panels. For each stretch of the reduction its panels are packed once and
// multiplied in turn by blocks of rows. So the stretch of x that they share comes from the second-level cache, and a
// panel from the first. The sizes suit a second-level cache of 512 KB; larger ones gain nothing on CPUs with more
// (docs/decisions/gemm-packing.md).
template <class Tile>
constexpr int64_t kGroupPanels = kPrepares<Tile> ? 8 : 4;  // rows are prepared once for each group
constexpr int64_t kHalvedRows = 256;  // a panel may be packed twice, for half of the rows each, if there are so many
template <class Tile>
constexpr int64_t kBlockRows = (256 + Tile::rows - 1) / Tile::rows * Tile::rows;
template <class Tile>
int64_t group_bytes() {
    return kGroupPanels<Tile> * int64_t(panel_size<Tile>() * sizeof(typename Tile::Element));
}
// After the panels, if the micro-kernel needs prepared x and weights: a block of rows for each part, and a panel's
// weights in float32.
template <class Tile>
int64_t unit_bytes() {
    if constexpr (kPrepares<Tile>)
        return group_bytes<Tile>() + 2 * kBlockRows<Tile> * Tile::kRow * 2 + Tile::depth * kPanelCols * 4;
    return group_bytes<Tile>();
}

// Computes rows [t0, t1), columns [begin, end) of the product.
template <class Tile>
void gemm_unit(const Segment* segments, int count, const float* bias, View out, bool accumulate, int64_t begin,
               int64_t end, int64_t t0, int64_t t1) {
    using Element = typename Tile::Element;
    auto* panels = static_cast<Element*>(thread_scratch(size_t(unit_bytes<Tile>())));
    auto* floats = reinterpret_cast<float*>(panels + kGroupPanels<Tile> * int64_t(panel_size<Tile>()));
    [[maybe_unused]] auto* prepared = reinterpret_cast<int16_t*>(floats + Tile::depth * kPanelCols);
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
        for (int64_t first = 0, next; first < reduction; first = next) {
            next = std::min<int64_t>(first + Tile::depth, reduction);
            Stretch stretch{part_of<Tile>(segment, first, next - first, 0), {}};
            if (next == reduction && s + 1 < count && segments[s + 1].x.cols <= kTail<Tile>) {
                s++;
                stretch.tail =
                    part_of<Tile>(segments[s], 0, segments[s].x.cols, stretch.body.strip * (kPanelCols / Tile::cols));
            }
            for (int64_t t = t0; t < t1; t += kBlockRows<Tile>) {
                const int64_t stop = std::min(t1, t + kBlockRows<Tile>);
                if constexpr (kPrepares<Tile>) {
                    int16_t* room = prepared;
                    for (Part* part : {&stretch.body, &stretch.tail})
                        if (part->depth) {
                            part->x = Tile::prepare(part->segment->x, t, stop, part->first, part->depth, room);
                            part->row0 = t;
                            room += kBlockRows<Tile> * Tile::kRow;
                        }
                }
                for (int64_t col = begin; col < end; col += kPanelCols) {
                    const int64_t lanes = std::min<int64_t>(kPanelCols, end - col);
                    Element* panel = panels + (col - begin) / kPanelCols * int64_t(panel_size<Tile>());
                    Ahead ahead;
                    if (t == t0) {
                        for (const Part& part : {stretch.body, stretch.tail})
                            if (part.depth)
                                pack_panel<Tile>(*part.segment, col, lanes, part.first, part.depth, panel + part.start,
                                                 floats);
                        const bool turn = col + kPanelCols >= end;  // whether the next stretch follows
                        const int64_t next_col = turn ? begin : col + kPanelCols, start = turn ? next : first;
                        if (start < reduction)
                            ahead = ahead_of(segment, next_col, std::min<int64_t>(kPanelCols, end - next_col), start,
                                             std::min<int64_t>(Tile::depth, reduction - start));
                    }
                    multiply_panel<Tile>(stretch, panel, out, col, lanes, t, stop, add, ahead);
                }
            }
            add = true;
        }
    }
    if (!add)  // the reduction is empty
        for (int64_t t = t0; t < t1; t++) std::fill_n(out.row<float>(t) + begin, end - begin, 0.0f);
}

template <class Tile>
void gemm_all(const Segment* segments, int count, const float* bias, View out, bool accumulate) {
    const int64_t panels = (out.cols + kPanelCols - 1) / kPanelCols, workers = threads();
    // Every worker could take the same number of panels, so that none waits at the end. Large units come first: groups
    // of panels, the last one of each share in halves, and the remaining panels cut among all workers. If a worker is
    // slower than others or does not run, the small units even it out (docs/decisions/threads.md). If x is prepared for
    // each unit, small ones cost more than they gain.
    const bool cut = out.rows >= 2 * Tile::rows;
    const int64_t owners = cut ? workers : 1, share = panels / owners, rest = panels - share * owners;
    const bool shrink = owners > 1 && share > 0 && !kPrepares<Tile>;
    const int64_t single = shrink, grouped = share - single;  // panels of a share
    const int64_t most = shrink ? std::min(kGroupPanels<Tile>, (share + 1) / 2) : kGroupPanels<Tile>;
    const int64_t group = cut ? most : 1, rounds = (grouped + group - 1) / group;
    const int64_t groups = rounds * owners, halves = out.rows >= kHalvedRows ? 2 : 1;
    const int64_t singles = single * owners * halves;
    parallel_for(groups + singles + rest * workers, [&](int64_t unit) {
        int64_t begin, end, piece = 0, pieces = 1;
        if (unit < groups) {
            const int64_t first = unit % owners * grouped, round = unit / owners;
            begin = first + grouped * round / rounds;
            end = first + grouped * (round + 1) / rounds;
        } else {
            const int64_t at = unit - groups;
            pieces = at < singles ? halves : workers;
            piece = (at < singles ? at : at - singles) % pieces;
            begin = at < singles ? grouped * owners + at / halves : panels - rest + (at - singles) / workers;
            end = begin + 1;
        }
        const int64_t height = round_up((out.rows + pieces - 1) / pieces, Tile::rows);
        const int64_t t0 = std::min(out.rows, piece * height), t1 = std::min(out.rows, t0 + height);
        if (t0 < t1)
            gemm_unit<Tile>(segments, count, bias, out, accumulate, begin * kPanelCols,
                            std::min(out.cols, end * kPanelCols), t0, t1);
    });
}

inline void gemm(const Segment* segments, int count, const float* bias, View out, bool accumulate) {
    if constexpr (!std::is_void_v<Bf16Tile>) {
        if (segments[0].x.dtype == Dtype::bf16) return gemm_all<Bf16Tile>(segments, count, bias, out, accumulate);
    }
    gemm_all<FloatTile>(segments, count, bias, out, accumulate);
}

// Bytes of a thread's panels for an output (rows, cols).
inline int64_t gemm_scratch(int64_t rows, int64_t cols, [[maybe_unused]] Dtype operand) {
    if (rows == 0 || cols == 0) return 0;
    if constexpr (!std::is_void_v<Bf16Tile>) {
        if (operand == Dtype::bf16) return unit_bytes<Bf16Tile>();
    }
    return unit_bytes<FloatTile>();
}

}  // namespace fb::FB_ISA
