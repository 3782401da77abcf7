#include "simd/gemm.h"
#include "simd/skinny.h"
#include "simd/skinny_codes.h"
#include "simd/table.h"

namespace fb::FB_ISA {

// y = x W^T + bias + h b: LoRA's second factor is one more segment of the reduction.
void linear(View x, Matrix w, const float* bias, View h, View b, View out, bool accumulate) {
    if (x.rows > 0 && x.rows <= kSkinnyRows)
        return with_type(w.type, [&](auto type) {
            with_count<kSkinnyRows>(int(x.rows), [&](auto rows) {
#if defined(__AVX512BF16__)
                if constexpr (has_codes(type()))
                    if (x.dtype == Dtype::bf16)
                        return linear_skinny<CodeRows<type(), rows()>, rows()>(x, w, bias, h, b, out, accumulate);
#endif
                linear_skinny<FloatRows<type(), rows()>, rows()>(x, w, bias, h, b, out, accumulate);
            });
        });
    const Segment segments[2] = {{x, w, true}, {h, as_matrix(b), false}};
    gemm(segments, h ? 2 : 1, bias, out, accumulate);
}

// Forward: y = x W^T + s (x A^T) B. Here dx = dy W + dh A.
void linear_backward(View dy, Matrix w, View dh, View a, View dx, bool accumulate) {
    const Segment segments[2] = {{dy, w, false}, {dh, as_matrix(a), false}};
    gemm(segments, dh ? 2 : 1, nullptr, dx, accumulate);
}

}  // namespace fb::FB_ISA
