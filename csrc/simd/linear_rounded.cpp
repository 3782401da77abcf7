#include "simd/byte_tiles.h"
#include "simd/skinny_bytes.h"
#include "simd/table.h"

namespace fb::FB_ISA {

namespace {

template <class T>
struct Form {
    using Rows = T;
};

// Calls body(a class of rows, T as a constant): one row is the case of decoding; several of a batch share each reading
// of the codes.
template <class Body>
void rounded(TensorType type, int64_t tokens, const Body& body) {
    with_type(type, [&](auto stored) {
        if constexpr (Format<stored()>::has_bytes) {
            const auto with_rows = [&](auto rows) { body(Form<ByteRows<stored(), rows()>>(), rows); };
            if (tokens == 1) with_rows(std::integral_constant<int, 1>{});
            else with_rows(std::integral_constant<int, kSkinnyRows>{});
        }
    });
}

}  // namespace

bool rounds(TensorType weights, int64_t rows) { return rows > 0 && rows <= kRoundedRows && has_byte_codes(weights); }

// Up to kSkinnyRows have the bits of single rows, so that a token has the same ones beside guesses of the next tokens.
void linear_rounded(View x, Matrix w, const float* bias, View h, View b, View out, bool accumulate) {
#if defined(__AVX512BF16__)
    if (x.rows > kSkinnyRows)
        return with_type(w.type, [&](auto stored) {
            if constexpr (Format<stored()>::has_bytes) linear_tiles<stored()>(x, w, bias, h, b, out, accumulate);
        });
#endif
    rounded(w.type, x.rows, [&](auto form, auto rows) {
        linear_skinny<typename decltype(form)::Rows, rows()>(x, w, bias, h, b, out, accumulate);
    });
}

Cost linear_rounded_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, Dtype, TensorType weights) {
    int64_t bytes = 0;
    rounded(weights, tokens,
            [&](auto form, auto) { bytes = skinny_scratch<typename decltype(form)::Rows>(tokens, inputs, rank); });
    return {linear_flops(tokens, inputs, outputs, rank, false), bytes};
}

}  // namespace fb::FB_ISA
