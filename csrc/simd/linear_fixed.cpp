#include "simd/gemm.h"
#include "simd/table.h"

namespace fb::FB_ISA {

void linear_fixed(View x, Matrix w, const float* bias, View h, View b, View out, bool accumulate) {
    if (x.rows <= kFixedFew) return linear(x, w, bias, h, b, out, accumulate);
    const Segment segments[2] = {{x, w, true}, {h, as_matrix(b), false}};
    gemm_all<FixedTile>(segments, h ? 2 : 1, bias, out, accumulate);
}

void linear_backward_fixed(View dy, Matrix w, View dh, View a, View dx, bool accumulate) {
    const Segment segments[2] = {{dy, w, false}, {dh, as_matrix(a), false}};
    gemm_all<FixedTile>(segments, dh ? 2 : 1, nullptr, dx, accumulate);
}

Cost linear_fixed_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, TensorType weights) {
    if (tokens <= kFixedFew) return linear_cost(tokens, inputs, outputs, rank, Dtype::f32, weights);
    return {linear_flops(tokens, inputs, outputs, rank, false), outputs ? unit_bytes<FixedTile>() : 0};
}

Cost linear_backward_fixed_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank) {
    return {linear_flops(tokens, inputs, outputs, rank, true), tokens && inputs ? unit_bytes<FixedTile>() : 0};
}

}  // namespace fb::FB_ISA
