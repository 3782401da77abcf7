#include "simd/gemm.h"
#include "simd/skinny.h"
#include "simd/skinny_codes.h"
#include "simd/table.h"

namespace fb::FB_ISA {

namespace {

template <class T>
struct Form {
    using Rows = T;
};

// Calls body(a class of rows, T as a constant) for products with few rows of x. One row is the case of decoding; two to
// four are rare, and share one class, because a class for each would double the compile time.
template <class Body>
void skinny(TensorType type, [[maybe_unused]] Dtype operand, int64_t tokens, const Body& body) {
    with_type(type, [&](auto stored) {
        const auto with_rows = [&](auto rows) {
#if defined(__AVX512BF16__)
            if constexpr (Format<stored()>::has_codes)
                if (operand == Dtype::bf16) return body(Form<CodeRows<stored(), rows()>>(), rows);
#endif
            body(Form<FloatRows<stored(), rows()>>(), rows);
        };
        if (tokens == 1) with_rows(std::integral_constant<int, 1>{});
        else with_rows(std::integral_constant<int, kSkinnyRows>{});
    });
}

bool is_skinny(int64_t tokens) { return tokens > 0 && tokens <= kSkinnyRows; }

}  // namespace

void pack_floats(const Segment& s, int64_t col, int64_t lanes, int64_t first, int64_t depth, float* panel) {
    pack_panel<FloatTile>(s, col, lanes, first, depth, panel, nullptr);
}

// y = x W^T + bias + h b. LoRA's second factor is one more segment of the reduction.
void linear(View x, Matrix w, const float* bias, View h, View b, View out, bool accumulate) {
    if (is_skinny(x.rows))
        return skinny(w.type, x.dtype, x.rows, [&](auto form, auto rows) {
            linear_skinny<typename decltype(form)::Rows, rows()>(x, w, bias, h, b, out, accumulate);
        });
    const Segment segments[2] = {{x, w, true}, {h, as_matrix(b), false}};
    gemm(segments, h ? 2 : 1, bias, out, accumulate);
}

// Forward: y = x W^T + s (x A^T) B. Here dx = dy W + dh A.
void linear_backward(View dy, Matrix w, View dh, View a, View dx, bool accumulate) {
    const Segment segments[2] = {{dy, w, false}, {dh, as_matrix(a), false}};
    gemm(segments, dh ? 2 : 1, nullptr, dx, accumulate);
}

Cost linear_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, Dtype operand, TensorType weights) {
    int64_t bytes = gemm_scratch(tokens, outputs, operand);
    if (is_skinny(tokens))
        skinny(weights, operand, tokens,
               [&](auto form, auto) { bytes = skinny_scratch<typename decltype(form)::Rows>(tokens, inputs, rank); });
    return {linear_flops(tokens, inputs, outputs, rank, false), bytes};
}

Cost linear_backward_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, Dtype operand) {
    return {linear_flops(tokens, inputs, outputs, rank, true), gemm_scratch(tokens, inputs, operand)};
}

}  // namespace fb::FB_ISA
