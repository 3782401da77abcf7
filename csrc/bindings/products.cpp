#include "bindings/arrays.h"
#include "core/thread_pool.h"

namespace fb {
namespace {

Dtype operand(bool bf16) { return bf16 ? Dtype::bf16 : Dtype::f32; }

PyCost linear_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, bool bf16, int type, bool fixed,
                   bool rounded) {
    check_sizes({tokens, inputs, outputs, rank});
    if (!block_shape(TensorType(type)).weights) refuse("tensor type " + std::to_string(type) + " is unknown");
    if (rounded && ops().rounds(TensorType(type), tokens))
        return as_pair(ops().linear_rounded_cost(tokens, inputs, outputs, rank, operand(bf16), TensorType(type)));
    if (fixed) return as_pair(ops().linear_fixed_cost(tokens, inputs, outputs, rank, TensorType(type)));
    return as_pair(ops().linear_cost(tokens, inputs, outputs, rank, operand(bf16), TensorType(type)));
}

void linear(InArray x_, const PyMatrix& w, Array out_, std::optional<InFloats> bias, std::optional<InArray> h_,
            std::optional<InArray> b_, bool accumulate, bool fixed, bool rounded) {
    const View x = view(x_, "x"), out = view(out_, "out"), h = view(h_, "h"), b = view(b_, "b");
    nb::gil_scoped_release release;
    const Timed timed("linear", ops().linear_cost(x.rows, x.cols, out.cols, h.cols, x.dtype, w.matrix.type).flops);
    checked::linear(x, w.matrix, view(bias), h, b, out, accumulate, fixed, rounded);
}

void linear_backward(InArray dy_, const PyMatrix& w, Array dx_, std::optional<InArray> dh_, std::optional<InArray> a_,
                     bool accumulate, bool fixed) {
    const View dy = view(dy_, "dy"), dx = view(dx_, "dx"), dh = view(dh_, "dh"), a = view(a_, "a");
    nb::gil_scoped_release release;
    const Timed timed("linear_backward",
                      ops().linear_backward_cost(dy.rows, dx.cols, dy.cols, dh.cols, dy.dtype).flops);
    checked::linear_backward(dy, w.matrix, dh, a, dx, accumulate, fixed);
}

void lora_in(InArray x_, InArray a_, Array h_, float scale, bool accumulate) {
    const View x = view(x_, "x"), a = view(a_, "a"), h = view(h_, "h");
    nb::gil_scoped_release release;
    const Timed timed("lora_in", ops().lora_in_cost(x.rows, x.cols, h.cols).flops);
    checked::lora_in(x, a, scale, h, accumulate);
}

void lora_gradient(InArray dh_, InArray x_, Array da_, float scale, bool accumulate) {
    const View dh = view(dh_, "dh"), x = view(x_, "x"), da = view(da_, "da");
    nb::gil_scoped_release release;
    const Timed timed("lora_gradient", ops().lora_gradient_cost(x.rows, x.cols, da.rows).flops);
    checked::lora_gradient(dh, x, scale, da, accumulate);
}

// Parts of a call are computed at the same time, so they must not overlap. `end`: of the parts before, or 0.
void check_part(int64_t first, int64_t last, int64_t rows, int64_t& end) {
    if (first < end || last <= first || last > rows)
        refuse("rows " + std::to_string(first) + " to " + std::to_string(last) + " are not in order, or not among " +
               std::to_string(rows));
    end = last;
}

// The first columns of rows [first, last).
View corner(const View& x, int64_t first, int64_t last, int64_t cols) {
    const int64_t size = x.dtype == Dtype::bf16 ? 2 : x.dtype == Dtype::f32 ? 4 : 8;
    return {static_cast<uint8_t*>(x.data) + first * x.ld * size, x.dtype, last - first, cols, x.ld};
}

void lora_in_parts(InArray x_, const std::vector<std::tuple<int64_t, int64_t, InArray, float>>& parts, Array h_,
                   bool accumulate) {
    struct Call {
        View x, a, h;
        float scale;
    };
    const View x = view(x_, "x"), h = view(h_, "h");
    check_shape(h, x.rows, h.cols, "h");
    std::vector<Call> calls;
    double flops = 0;
    int64_t end = 0;
    for (const auto& [first, last, a_, scale] : parts) {
        const View a = view(a_, "a");
        check_part(first, last, x.rows, end);
        check_f32(a, "a");
        if (a.cols != x.cols || a.rows > h.cols) check_shape(a, h.cols, x.cols, "a");
        calls.push_back({corner(x, first, last, x.cols), a, corner(h, first, last, a.rows), scale});
        flops += ops().lora_in_cost(last - first, x.cols, a.rows).flops;
    }
    nb::gil_scoped_release release;
    const Timed timed("lora_in_parts", flops);
    parallel_for(int64_t(calls.size()), [&](int64_t unit) {
        const Call& call = calls[size_t(unit)];
        ops().lora_in(call.x, call.a, call.scale, call.h, accumulate);
    });
}

// A product without x adds each row's h b in the order of the other products, so the row has the same bits as with one
// factor for all rows.
void lora_out_parts(InArray h_, const std::vector<std::tuple<int64_t, int64_t, InArray>>& parts, Array out_) {
    struct Call {
        View x, h, b, out;
    };
    const View h = view(h_, "h"), out = view(out_, "out");
    check_shape(h, out.rows, h.cols, "h");
    check_f32(out, "out");
    std::vector<Call> calls;
    double flops = 0;
    int64_t end = 0;
    for (const auto& [first, last, b_] : parts) {
        const View b = view(b_, "b");
        check_part(first, last, h.rows, end);
        check_f32(b, "b");
        if (b.cols != out.cols || b.rows > h.cols) check_shape(b, h.cols, out.cols, "b");
        for (int64_t row = first; row < last; row++)
            calls.push_back(
                {corner(h, row, row + 1, 0), corner(h, row, row + 1, b.rows), b, corner(out, row, row + 1, out.cols)});
        flops += ops().lora_gradient_cost(last - first, out.cols, b.rows).flops;
    }
    nb::gil_scoped_release release;
    const Timed timed("lora_out_parts", flops);
    parallel_for(int64_t(calls.size()), [&](int64_t unit) {
        const Call& call = calls[size_t(unit)];
        Matrix none;
        none.data = static_cast<const uint8_t*>(call.b.data);
        none.rows = call.out.cols;
        ops().linear(call.x, none, nullptr, call.h, call.b, call.out, true);
    });
}

void gather_rows(const PyMatrix& w, Ints ids, Array out_) {
    const View out = view(out_, "out");
    nb::gil_scoped_release release;
    const Timed timed("gather_rows", 0);
    checked::gather_rows(w.matrix, indices(ids), out);
}

void dequantize(const PyMatrix& w, Array out_) {
    const View out = view(out_, "out");
    check_shape(out, w.matrix.rows, w.matrix.cols, "out");
    nb::gil_scoped_release release;
    const Timed timed("dequantize", 0);
    ops().dequantize(w.matrix, out);
}

// Rows of 8-bit blocks.
template <class Byte>
using Codes = nb::ndarray<Byte, nb::ndim<2>, nb::device::cpu>;

template <class Byte>
void check_codes(const Codes<Byte>& codes, int64_t rows, int64_t cols) {
    const BlockShape block = block_shape(TensorType::Q8_0);
    const int64_t bytes = (cols + block.weights - 1) / block.weights * block.bytes;
    if (int64_t(codes.shape(0)) != rows || int64_t(codes.shape(1)) != bytes)
        refuse("codes is (" + std::to_string(codes.shape(0)) + ", " + std::to_string(codes.shape(1)) + "), not (" +
               std::to_string(rows) + ", " + std::to_string(bytes) + ")");
    if (rows > 0 && bytes > 0 && codes.stride(1) != 1) refuse("codes' rows must be contiguous");
}

void encode(InArray x_, Codes<uint8_t> codes) {
    const View x = view(x_, "x");
    check_codes(codes, x.rows, x.cols);
    nb::gil_scoped_release release;
    const Timed timed("encode", 0);
    ops().encode(x, codes.data(), codes.stride(0));
}

void decode(Codes<const uint8_t> codes, Array out_) {
    const View out = view(out_, "out");
    check_codes(codes, out.rows, out.cols);
    Matrix m;
    m.data = codes.data();
    m.type = TensorType::Q8_0;
    m.row_bytes = codes.stride(0);
    m.rows = out.rows;
    m.cols = out.cols;
    nb::gil_scoped_release release;
    const Timed timed("decode", 0);
    ops().dequantize(m, out);
}

PyCost linear_backward_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, bool bf16, bool fixed) {
    check_sizes({tokens, inputs, outputs, rank});
    if (fixed) return as_pair(ops().linear_backward_fixed_cost(tokens, inputs, outputs, rank));
    return as_pair(ops().linear_backward_cost(tokens, inputs, outputs, rank, operand(bf16)));
}

PyCost lora_in_cost(int64_t tokens, int64_t inputs, int64_t rank) {
    check_sizes({tokens, inputs, rank});
    return as_pair(ops().lora_in_cost(tokens, inputs, rank));
}

PyCost lora_gradient_cost(int64_t tokens, int64_t inputs, int64_t rank) {
    check_sizes({tokens, inputs, rank});
    return as_pair(ops().lora_gradient_cost(tokens, inputs, rank));
}

}  // namespace

void bind_products(nb::module_& m) {
    m.def("linear", &linear, nb::arg("x"), nb::arg("w"), nb::arg("out"), nb::arg("bias") = nb::none(),
          nb::arg("h") = nb::none(), nb::arg("b") = nb::none(), nb::arg("accumulate") = false, nb::arg("fixed") = false,
          nb::arg("rounded") = false,
          "out (T, N) (+)= x (T, K) W^T + bias (N) + h (T, r) b (r, N); fixed: in fixed point; rounded: if x has few "
          "rows and W's levels are bytes, with x in blocks of eight bits");
    m.def("linear_backward", &linear_backward, nb::arg("dy"), nb::arg("w"), nb::arg("dx"), nb::arg("dh") = nb::none(),
          nb::arg("a") = nb::none(), nb::arg("accumulate") = false, nb::arg("fixed") = false,
          "dx (T, K) (+)= dy (T, N) W + dh (T, r) a (r, K); fixed: in fixed point");
    m.def(
        "rounds", [](int type, int64_t rows) { return ops().rounds(TensorType(type), rows); }, nb::arg("type"),
        nb::arg("rows"), "whether `rounded` products of so many rows with a type of weights round x");
    m.def("lora_in", &lora_in, nb::arg("x"), nb::arg("a"), nb::arg("h"), nb::arg("scale") = 1.0f,
          nb::arg("accumulate") = false, "h (T, r) (+)= scale * x (T, K) a (r, K)^T");
    m.def("lora_gradient", &lora_gradient, nb::arg("dh"), nb::arg("x"), nb::arg("da"), nb::arg("scale") = 1.0f,
          nb::arg("accumulate") = false, "da (r, K) (+)= scale * dh (T, r)^T x (T, K)");
    m.def("lora_in_parts", &lora_in_parts, nb::arg("x"), nb::arg("parts"), nb::arg("h"), nb::arg("accumulate") = false,
          "lora_in for rows [first, last) of x (T, K) and h (T, R), with factors of their own; parts: (first, last, a "
          "(r, K), scale), whose results are the first r columns of h");
    m.def("lora_out_parts", &lora_out_parts, nb::arg("h"), nb::arg("parts"), nb::arg("out"),
          "out (T, N) += h (T, R) b for rows [first, last), with factors of their own; parts: (first, last, b (r, N)), "
          "which read the first r columns of h");
    m.def("linear_cost", &linear_cost, nb::arg("tokens"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("rank"),
          nb::arg("bf16"), nb::arg("type") = 0, nb::arg("fixed") = false, nb::arg("rounded") = false,
          "(floating-point operations, bytes of scratch per thread); type: of the stored weight, which matters up to "
          "four tokens");
    m.def("linear_backward_cost", &linear_backward_cost, nb::arg("tokens"), nb::arg("inputs"), nb::arg("outputs"),
          nb::arg("rank"), nb::arg("bf16"), nb::arg("fixed") = false,
          "(floating-point operations, bytes of scratch per thread)");
    m.def("lora_in_cost", &lora_in_cost, nb::arg("tokens"), nb::arg("inputs"), nb::arg("rank"),
          "(floating-point operations, bytes of scratch per thread)");
    m.def("lora_gradient_cost", &lora_gradient_cost, nb::arg("tokens"), nb::arg("inputs"), nb::arg("rank"),
          "(floating-point operations, bytes of scratch per thread)");
    m.def("gather_rows", &gather_rows, nb::arg("w"), nb::arg("ids"), nb::arg("out"), "out (n, D) = rows ids of W");
    m.def("dequantize", &dequantize, nb::arg("w"), nb::arg("out"), "out (rows, cols) = W");
    m.def("encode", &encode, nb::arg("x"), nb::arg("codes").noconvert(),
          "codes (T, bytes) = x (T, K) in blocks of eight bits, Q8_0's");
    m.def("decode", &decode, nb::arg("codes"), nb::arg("out"), "out (T, K) = what `encode` made codes of, rounded");
}

}  // namespace fb
