#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

// body(silu, has x, tag of x's elements): the first two are constants.
template <class Body>
void by_form(Gate form, const View& x, const Body& body) {
    by_flag(form == Gate::silu, [&](auto silu) {
        by_flag(bool(x), [&](auto some) { by_dtype(x.dtype, [&](auto* tag) { body(silu, some, tag); }); });
    });
}

}  // namespace

void gate(View z, View x, Gate form, View out) {
    by_form(form, x, [&](auto silu, auto some, auto* x_tag) {
        using X = std::remove_pointer_t<decltype(x_tag)>;
        by_dtype(out.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            parallel_rows(z.rows, z.cols, [&](int64_t t) {
                for_lanes(z.cols, [&](auto get, auto put) {
                    const Vec at = get(z.row<float>(t));
                    Vec value = sigmoid(at);
                    if constexpr (silu()) value *= at;
                    if constexpr (some()) value *= get(x.row<X>(t));
                    put(out.row<O>(t), value);
                });
            });
        });
    });
}

// sigmoid' = s (1 - s);   silu' = s (1 + z (1 - s))
void gate_backward(View da, View z, View x, Gate form, View dz, View dx) {
    by_form(form, x, [&](auto silu, auto some, auto* x_tag) {
        using X = std::remove_pointer_t<decltype(x_tag)>;
        by_flag(bool(dx), [&](auto both) {
            parallel_rows(z.rows, z.cols, [&](int64_t t) {
                for_lanes(z.cols, [&](auto get, auto put) {
                    const Vec at = get(z.row<float>(t)), grad = get(da.row<float>(t)), s = sigmoid(at);
                    Vec value = s, slope = s * (1.0f - s);
                    if constexpr (silu()) value *= at, slope = s * (1.0f + at * (1.0f - s));
                    if constexpr (some()) slope *= get(x.row<X>(t));
                    if constexpr (both()) put(dx.row<float>(t), grad * value);
                    put(dz.row<float>(t), grad * slope);
                });
            });
        });
    });
}

}  // namespace fb::FB_ISA
