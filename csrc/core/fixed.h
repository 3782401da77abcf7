// The fixed point in which products can be computed: the same numbers on every instruction set.
//
// Steps of the reduction come in groups, and a group in chunks. The products of a chunk are summed in int32, in any
// order; chunks are added in float32, in theirs. A group of a column of the panel (a row of W forward, a column
// backward) has one scale; a group of a row of x has one as well, and each of its chunks a share of it, a power of two.
// A chunk's sum is multiplied by its share, a group's by the product of both scales.
//
// No sum overflows, whatever the numbers: |sum q p| <= |q| |p| (Cauchy and Schwarz). So scales keep the norms of a
// chunk below kFixedRowNorm and kFixedColumnNorm, and no number exceeds int16; docs/decisions/fixed-point.md adds what
// is rounded.
//
//   t = max(|v|, kFixedFloor), its last twelve bits cut off: then t^2 is exact, and a fused addition no other
//   squares of a chunk = the sum of t^2 in float32 by eight parts, steps i, i + 8, i + 16, i + 24 to part i % 8; then
//   parts i and i + 4, those i and i + 2, and the last two are added. Steps beyond the end count as zeros.
//   most = the largest squares of the group
//   x: inverse = kFixedRowNorm / sqrt(most); share = 2^-e with e = floor(log2(most / squares) / 2), kFixedShift at most
//   columns: inverse = min(kFixedColumnNorm / sqrt(most), kFixedPeak / sqrt(the largest part of a chunk))
//   q = nearest(v * (inverse / share)), scale = 1 / inverse
//
// NaN and infinity make the scale of the group NaN or infinite, and nothing that is computed with it finite.
#pragma once
#include <cstdint>

namespace fb {

constexpr int kFixedGroup = 256, kFixedChunk = 32;
constexpr float kFixedRowNorm = 32740, kFixedColumnNorm = 65500, kFixedPeak = 32740, kFixedFloor = 0x1p-62f;
constexpr int kFixedShift = 30;
constexpr uint32_t kFixedBits = 0x7ffff000;  // of |v| that t keeps
// LoRA's second factor is added to the last group's sum before that is added to the output, if it has so few steps.
constexpr int kFixedTail = kFixedGroup / 4;
// So few rows of x, as in decoding, are multiplied in float32 forward: unpacking weights is all the work there is.
constexpr int kFixedFew = 4;

}  // namespace fb
