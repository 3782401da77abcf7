#include "bindings/arrays.h"

namespace fb {
namespace {

void rms_norm(InArray x_, InFloats weight, float eps, Array out_, bool accumulate) {
    const View x = view(x_, "x"), out = view(out_, "out");
    nb::gil_scoped_release release;
    const Timed timed("rms_norm", 0);
    checked::rms_norm(x, view(weight), eps, out, accumulate);
}

void rms_norm_backward(InArray dn_, InArray x_, InFloats weight, float eps, Array dx_, bool accumulate) {
    const View dn = view(dn_, "dn"), x = view(x_, "x"), dx = view(dx_, "dx");
    nb::gil_scoped_release release;
    const Timed timed("rms_norm_backward", 0);
    checked::rms_norm_backward(dn, x, view(weight), eps, dx, accumulate);
}

void layer_norm(InArray x_, InFloats weight, std::optional<InFloats> bias, float eps, Array out_) {
    const View x = view(x_, "x"), out = view(out_, "out");
    nb::gil_scoped_release release;
    const Timed timed("layer_norm", 0);
    checked::layer_norm(x, view(weight), view(bias), eps, out);
}

void layer_norm_backward(InArray dn_, InArray x_, InFloats weight, float eps, Array dx_, bool accumulate) {
    const View dn = view(dn_, "dn"), x = view(x_, "x"), dx = view(dx_, "dx");
    nb::gil_scoped_release release;
    const Timed timed("layer_norm_backward", 0);
    checked::layer_norm_backward(dn, x, view(weight), eps, dx, accumulate);
}

void rope(InArray x_, InArray cos_, InArray sin_, Array out_, int64_t head_dim, bool interleaved, bool inverse) {
    const View x = view(x_, "x"), cos = view(cos_, "cos"), sin = view(sin_, "sin"), out = view(out_, "out");
    nb::gil_scoped_release release;
    const Timed timed("rope", 0);
    checked::rope(x, {cos, sin, head_dim, interleaved}, inverse, out);
}

void glu(InArray gate_, std::optional<InArray> up_, Array out_, const std::string& activation) {
    const View gate = view(gate_, "gate"), up = view(up_, "up"), out = view(out_, "out");
    nb::gil_scoped_release release;
    const Timed timed("glu", 0);
    checked::glu(gate, up, checked::activation_of(activation), out);
}

void glu_backward(InArray da_, InArray gate_, std::optional<InArray> up_, Array dgate_, std::optional<Array> dup_,
                  const std::string& activation, std::optional<Array> a_) {
    const View da = view(da_, "da"), gate = view(gate_, "gate"), up = view(up_, "up");
    const View dgate = view(dgate_, "dgate"), dup = view(dup_, "dup"), a = view(a_, "a");
    nb::gil_scoped_release release;
    const Timed timed("glu_backward", 0);
    checked::glu_backward(da, gate, up, checked::activation_of(activation), dgate, dup, a);
}

// Rows of two-bit codes: 16 bytes for 64 columns.
template <class Byte>
using SlopeCodes = nb::ndarray<Byte, nb::ndim<2>, nb::device::cpu>;

template <class Byte>
void check_slope_codes(const SlopeCodes<Byte>& codes, const View& of) {
    const int64_t bytes = (of.cols + 63) / 64 * 16;
    if (int64_t(codes.shape(0)) != of.rows || int64_t(codes.shape(1)) != bytes)
        refuse("codes is (" + std::to_string(codes.shape(0)) + ", " + std::to_string(codes.shape(1)) + "), not (" +
               std::to_string(of.rows) + ", " + std::to_string(bytes) + ")");
    if (of.rows > 0 && bytes > 0 && codes.stride(1) != 1) refuse("codes' rows must be contiguous");
}

void slope_codes(InArray x_, InFloats bounds, SlopeCodes<uint8_t> codes) {
    const View x = view(x_, "x");
    check_length(int64_t(bounds.shape(0)), 3, "bounds");
    check_slope_codes(codes, x);
    nb::gil_scoped_release release;
    const Timed timed("slope_codes", 0);
    ops().slope_codes(x, bounds.data(), codes.data(), codes.stride(0));
}

void slope_backward(InArray da_, SlopeCodes<const uint8_t> codes, InFloats slopes, Array dz_) {
    const View da = view(da_, "da"), dz = view(dz_, "dz");
    check_f32(da, "da");
    check_shape(dz, da.rows, da.cols, "dz");
    check_length(int64_t(slopes.shape(0)), 4, "slopes");
    check_slope_codes(codes, da);
    nb::gil_scoped_release release;
    const Timed timed("slope_backward", 0);
    ops().slope_backward(da, codes.data(), codes.stride(0), slopes.data(), dz);
}

const float* of_columns(const InFloats& numbers, const View& x, const char* name) {
    check_length(int64_t(numbers.shape(0)), x.cols, name);
    return numbers.data();
}

// The float32 arrays of a recurrence, which all have one shape.
void check_recurrence(std::initializer_list<std::pair<const View*, const char*>> views) {
    const View& first = *views.begin()->first;
    for (const auto& [each, name] : views) {
        check_shape(*each, first.rows, first.cols, name);
        check_f32(*each, name);
    }
}

void gated_recurrence(InArray i_, InArray f_, InFloats bound_, Floats state, Array h_) {
    const View i = view(i_, "i"), f = view(f_, "f"), h = view(h_, "h");
    check_recurrence({{&i, "i"}, {&f, "f"}, {&h, "h"}});
    const float* bound = of_columns(bound_, i, "bound");
    check_length(int64_t(state.shape(0)), i.cols, "state");
    nb::gil_scoped_release release;
    const Timed timed("gated_recurrence", 0);
    ops().gated_recurrence(i, f, bound, state.data(), h);
}

void gated_recurrence_backward(InArray dh_, InArray i_, InArray f_, InFloats bound_, InFloats before_, InArray h_,
                               Floats carry, Array di_, Array df_) {
    const View dh = view(dh_, "dh"), i = view(i_, "i"), f = view(f_, "f"), h = view(h_, "h");
    const View di = view(di_, "di"), df = view(df_, "df");
    check_recurrence({{&i, "i"}, {&f, "f"}, {&h, "h"}, {&dh, "dh"}});
    check_shape(di, i.rows, i.cols, "di");
    check_shape(df, i.rows, i.cols, "df");
    if (di.dtype != df.dtype) refuse("di and df must have one type");
    const float *bound = of_columns(bound_, i, "bound"), *before = of_columns(before_, i, "before");
    check_length(int64_t(carry.shape(0)), i.cols, "carry");
    nb::gil_scoped_release release;
    const Timed timed("gated_recurrence_backward", 0);
    ops().gated_recurrence_backward(dh, i, f, bound, before, h, carry.data(), di, df);
}

void round_rows(InArray x_, Array out_) {
    const View x = view(x_, "x"), out = view(out_, "out");
    check_f32(x, "x");
    check_shape(out, x.rows, x.cols, "out");
    nb::gil_scoped_release release;
    const Timed timed("round_rows", 0);
    ops().round_rows(x, out);
}

void cast(InArray x_, Array out_) {
    const View x = view(x_, "x"), out = view(out_, "out");
    nb::gil_scoped_release release;
    const Timed timed("cast", 0);
    checked::cast(x, out);
}

const float* column_numbers(const std::optional<InFloats>& numbers, const View& x, const char* name) {
    if (!numbers) return nullptr;
    check_length(int64_t(numbers->shape(0)), x.cols, name);
    return numbers->data();
}

void scale_columns(InArray x_, std::optional<InFloats> factors_, Array out_, std::optional<InFloats> bias_,
                   bool accumulate) {
    const View x = view(x_, "x"), out = view(out_, "out");
    const float* factors = column_numbers(factors_, x, "factors");
    const float* bias = column_numbers(bias_, x, "bias");
    check_shape(out, x.rows, x.cols, "out");
    if (accumulate) check_f32(out, "out, which is added to,");
    nb::gil_scoped_release release;
    const Timed timed("scale_columns", 0);
    ops().scale_columns(x, factors, bias, out, accumulate);
}

void column_dots(InArray x_, InArray y_, Floats out, std::optional<InFloats> less_, std::optional<InFloats> over_) {
    const View x = view(x_, "x"), y = view(y_, "y");
    const float* less = column_numbers(less_, x, "less");
    const float* over = column_numbers(over_, x, "over");
    check_shape(y, x.rows, x.cols, "y");
    check_length(int64_t(out.shape(0)), x.cols, "out");
    nb::gil_scoped_release release;
    const Timed timed("column_dots", 0);
    ops().column_dots(x, y, less, over, out.data());
}

void round_at_random(InArray x_, States states, Array out_) {
    const View x = view(x_, "x"), out = view(out_, "out");
    check_f32(x, "x");
    check_shape(out, x.rows, x.cols, "out");
    if (out.dtype != Dtype::bf16) refuse("out must be bf16");
    check_length(int64_t(states.shape(0)), x.rows, "states");
    nb::gil_scoped_release release;
    const Timed timed("round_at_random", 0);
    ops().round_at_random(x, states.data(), out);
}

void add_drawn(States states, int64_t first, InFloats table, float factor, Array out_) {
    const View out = view(out_, "out");
    check_f32(out, "out");
    product({first}, "first");
    check_length(int64_t(states.shape(0)), out.rows, "states");
    check_length(int64_t(table.shape(0)), 1 << 16, "table");
    nb::gil_scoped_release release;
    const Timed timed("add_drawn", 0);
    ops().add_drawn(states.data(), first, table.data(), factor, out);
}

double sum_squares(InArray x_) {
    const View x = view(x_, "x");
    return checked::sum_squares(x);
}

}  // namespace

void bind_rows(nb::module_& m) {
    m.def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("out"),
          nb::arg("accumulate") = false,
          "out (T, D) (+)= x * weight / sqrt(mean(x^2) + eps), for each group of as many columns as weight has; out "
          "may be x");
    m.def("rms_norm_backward", &rms_norm_backward, nb::arg("dn"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"),
          nb::arg("dx"), nb::arg("accumulate") = true,
          "dx (T, D) (+)= the gradient of rms_norm's input x, from dn; dx may be dn if it is overwritten");
    m.def("layer_norm", &layer_norm, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("eps"),
          nb::arg("out"), "out (T, D) = (x - mean) / sqrt(variance + eps) * weight + bias; out may be x");
    m.def("layer_norm_backward", &layer_norm_backward, nb::arg("dn"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"),
          nb::arg("dx"), nb::arg("accumulate") = true,
          "dx (T, D) (+)= the gradient of layer_norm's input x, from dn; dx may be dn if it is overwritten");
    m.def("rope", &rope, nb::arg("x"), nb::arg("cos"), nb::arg("sin"), nb::arg("out"), nb::arg("head_dim"),
          nb::arg("interleaved"), nb::arg("inverse") = false, "out = x rotated (or rotated back); out may be x");
    m.def(
        "glu", &glu, nb::arg("gate"), nb::arg("up").none(), nb::arg("out"), nb::arg("activation"),
        "out (T, F) = activation(gate) * up, or without up; the activation is 'silu', 'gelu', 'gelu_tanh', 'relu2' or "
        "'clipped_silu', which needs up");
    m.def("glu_backward", &glu_backward, nb::arg("da"), nb::arg("gate"), nb::arg("up").none(), nb::arg("dgate"),
          nb::arg("dup").none(), nb::arg("activation"), nb::arg("a") = nb::none(),
          "dgate, dup (T, F) from da, with a = activation(gate) * up, which is computed once more if it is given");
    m.def("slope_codes", &slope_codes, nb::arg("x"), nb::arg("bounds"), nb::arg("codes").noconvert(),
          "codes (T, 16 bytes for 64 columns) = how many of three ascending bounds each x (T, F) exceeds, in two bits");
    m.def("slope_backward", &slope_backward, nb::arg("da"), nb::arg("codes"), nb::arg("slopes"), nb::arg("dz"),
          "dz (T, F) = da times one of four slopes, chosen by such codes");
    m.def("gated_recurrence", &gated_recurrence, nb::arg("i"), nb::arg("f"), nb::arg("bound"),
          nb::arg("state").noconvert(), nb::arg("h"),
          "h_t (T, D) = (1 - k_t) h_{t-1} + silu(i_t) k_t, k_t = (1 - bound) sigmoid(-f_t), from h_{-1} = state (D), "
          "which becomes the last row of h");
    m.def(
        "gated_recurrence_backward", &gated_recurrence_backward, nb::arg("dh"), nb::arg("i"), nb::arg("f"),
        nb::arg("bound"), nb::arg("before"), nb::arg("h"), nb::arg("carry").noconvert(), nb::arg("di"), nb::arg("df"),
        "di, df (T, D) from dh, where h = gated_recurrence(i, f) from h_{-1} = before (D); carry (D), the gradient of "
        "the last row from behind, becomes that of before");
    m.def("round_rows", &round_rows, nb::arg("x"), nb::arg("out"),
          "out (T, K) = x in 8-bit steps of its row: nearest(x s) / s, s = 127 / max(max |x|, 1e-5); out may be x");
    m.def("cast", &cast, nb::arg("x"), nb::arg("out"), "out = x in out's type");
    m.def("scale_columns", &scale_columns, nb::arg("x"), nb::arg("factors").none(), nb::arg("out"),
          nb::arg("bias") = nb::none(), nb::arg("accumulate") = false,
          "out (T, N) (+)= x * factors (N) + bias (N); out may be x");
    m.def("column_dots", &column_dots, nb::arg("x"), nb::arg("y"), nb::arg("out").noconvert(),
          nb::arg("less") = nb::none(), nb::arg("over") = nb::none(),
          "out (N) += sum over t of x (T, N) (y (T, N) - less (N)) / over (N), nothing where over is 0");
    m.def("round_at_random", &round_at_random, nb::arg("x"), nb::arg("states"), nb::arg("out").noconvert(),
          "out (n, cols), bf16 = x (n, cols), up or down at random by the states (n) of its rows, so that the mean "
          "stays");
    m.def("add_drawn", &add_drawn, nb::arg("states"), nb::arg("first"), nb::arg("table"), nb::arg("factor"),
          nb::arg("out").noconvert(),
          "out (n, cols) += factor * table[16 random bits], which depend on a row's state (n) and the column, counted "
          "from "
          "`first` on; table (65536)");
    m.def("sum_squares", &sum_squares, nb::arg("x"), "sum of x^2, in double");
}

}  // namespace fb
