// Fixed-point arithmetic for products: the same numbers on every instruction set.
//
// The steps of the reduction come in groups, and each group in chunks. The products of a chunk are summed in int32, in
// any order. Chunks are added in float32, in their order. Each group of a column of the panel (a row of W forward, a
// column backward) has one scale. Each group of a row of x has a scale too, and each of its chunks has a share of it, a
// power of two. A chunk's sum is multiplied by its share, and a group's by the product of both scales.
//
// No sum can overflow, because |sum q p| <= |q| |p| (Cauchy and Schwarz): the scales keep the norms of a chunk below
// kFixedRowNorm and kFixedColumnNorm, and no number exceeds int16. docs/decisions/fixed-point.md describes the
// rounding.
//
//   t = max(|v|, kFixedFloor) without its last twelve bits: then t^2 is exact, and a fused addition gives the same
//   squares of a chunk = the sum of t^2 in float32 in eight parts, steps i, i + 8, i + 16, i + 24 in part i % 8; then
//   parts i and i + 4 are added, then i and i + 2, then the last two. Steps beyond the end count as zeros.
//   most = the largest squares of the group
//   x: inverse = kFixedRowNorm / sqrt(most); share = 2^-e with e = floor(log2(most / squares) / 2), kFixedShift at most
//   columns: inverse = min(kFixedColumnNorm / sqrt(most), kFixedPeak / sqrt(the largest part of a chunk))
//   q = nearest(v * (inverse / share)), scale = 1 / inverse
//
// NaN and infinity make the group's scale NaN or infinite, so that no result computed with it is finite.
#pragma once
#include <cstdint>

namespace fb {

constexpr int kFixedGroup = 256, kFixedChunk = 32;
constexpr float kFixedRowNorm = 32740, kFixedColumnNorm = 65500, kFixedPeak = 32740, kFixedFloor = 0x1p-62f;
constexpr int kFixedShift = 30;
constexpr uint32_t kFixedBits = 0x7ffff000;  // the bits of |v| that t keeps
// LoRA's second factor is added to the last group's sum before the output, if it has at most this many steps.
constexpr int kFixedTail = kFixedGroup / 4;
// Up to this many rows of x, as in decoding, are multiplied in float32 forward, because unpacking dominates there.
constexpr int kFixedFew = 4;

}  // namespace fb
