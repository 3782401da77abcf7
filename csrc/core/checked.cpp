#include "core/checked.h"

#include <cmath>
#include <utility>

namespace fb::checked {
namespace {

// Fixed-point products read and write only float32.
void check_fixed(bool fixed, const View& x, const char* x_name, const View& out, const char* out_name) {
    if (fixed && x.dtype != Dtype::f32) refuse(std::string(x_name) + " must be float32");
    if (fixed && out.dtype != Dtype::f32) refuse(std::string(out_name) + " must be float32");
}

// A row of float32 for each column or row of something, or nothing.
void check_row(const View& v) {
    if (v && (v.dtype != Dtype::f32 || v.rows != 1)) refuse("a row of float32 is expected");
}

float* numbers(const View& v) {
    check_row(v);
    return static_cast<float*>(v.data);
}

// A norm's weight for x's rows, or for each group of its columns.
void check_norm(const View& weight, const View& x) {
    check_row(weight);
    if (weight.cols == 0 ? x.cols > 0 : x.cols % weight.cols)
        refuse("weight has " + std::to_string(weight.cols) + " elements, which do not divide " +
               std::to_string(x.cols));
}

void check_norm_backward(const View& dn, const View& x, const View& dx, bool accumulate) {
    check_shape(dn, x.rows, x.cols, "dn");
    check_shape(dx, x.rows, x.cols, "dx");
    check_f32(dn, "dn");
    if (accumulate) check_f32(dx, "dx, which is added to,");
}

void check_gate(const View& gate, const View& up, Activation form) {
    check_shape(up, gate.rows, gate.cols, "up");
    if (up && gate.dtype != up.dtype) refuse("gate and up must have one type");
    if (!up && form == Activation::clipped_silu) refuse("clipped_silu needs up");
}

// cu starts at 0, never decreases, and ends at the number of rows.
void check_boundaries(Indices cu, int64_t rows, const char* name) {
    if (cu.count < 2 || cu.data[0] != 0 || cu.data[cu.count - 1] != rows)
        refuse(std::string(name) + " must run from 0 to " + std::to_string(rows));
    for (int64_t i = 1; i < cu.count; i++)
        if (cu.data[i] < cu.data[i - 1]) refuse(std::string(name) + " must not decrease");
}

void check_sequences(Indices cu_q, int64_t queries, Indices cu_k, int64_t keys) {
    check_boundaries(cu_q, queries, "cu_q");
    check_boundaries(cu_k, keys, "cu_k");
    if (cu_k.count != cu_q.count) refuse("cu_q and cu_k must hold the same number of sequences");
    for (int64_t i = 1; i < cu_q.count; i++)
        if (cu_k.data[i] - cu_k.data[i - 1] < cu_q.data[i] - cu_q.data[i - 1])
            refuse("a sequence has more queries than keys");
}

// prefix (S,): -1, or the sequence that this one continues. Sequences that continue one follow it without a gap.
void check_prefix(Indices prefix, Indices cu_k, int64_t window) {
    if (!prefix.data) return;
    const int64_t sequences = cu_k.count - 1;
    if (prefix.count != sequences) refuse("prefix must hold a number for each sequence");
    const int32_t *before = prefix.data, *cu = cu_k.data;
    for (int64_t i = 0; i < sequences; i++) {
        const int64_t at = before[i];
        if (at < -1 || at >= i || (at >= 0 && at != i - 1 && before[i - 1] != at) || (at >= 0 && before[at] >= 0))
            refuse("prefix must be -1, or the sequence that this one and all between the two continue");
        if (at >= 0 && window == kBothWays) refuse("attention that is not causal has no prefixes");
        if (at >= 0 && window > 0 && int64_t(cu[i + 1]) - cu[i] + cu[at + 1] - cu[at] > window)
            refuse("a sequence with its prefix is longer than the window");
    }
}

void check_probabilities(const View& p, const View& q, const View& k, int64_t heads) {
    if (p) check_shape(p, product({heads, q.rows}, "p"), k.rows, "p");
    check_f32(p, "p");
}

}  // namespace

void linear(View x, const Matrix& w, View bias, View h, View b, View out, bool accumulate, bool fixed, bool rounded) {
    check_shape(x, out.rows, w.cols, "x");
    check_shape(out, x.rows, w.rows, "out");
    check_f32(out, "out");
    check_f32(b, "b");
    if (bool(h) != bool(b)) refuse("h and b come together");
    check_shape(h, x.rows, b.rows, "h");
    check_shape(b, h.cols, out.cols, "b");
    if (h && h.dtype != x.dtype) refuse("h must have x's type");
    if (bias) check_length(bias.cols, out.cols, "bias");
    check_fixed(fixed, x, "x", out, "out");
    const auto multiply = rounded && ops().rounds(w.type, x.rows) ? ops().linear_rounded
                          : fixed                                 ? ops().linear_fixed
                                                                  : ops().linear;
    multiply(x, w, numbers(bias), h, b, out, accumulate);
}

void linear_backward(View dy, const Matrix& w, View dh, View a, View dx, bool accumulate, bool fixed) {
    check_shape(dy, dx.rows, w.rows, "dy");
    check_shape(dx, dy.rows, w.cols, "dx");
    check_f32(dx, "dx");
    check_f32(a, "a");
    if (bool(dh) != bool(a)) refuse("dh and a come together");
    check_shape(dh, dy.rows, a.rows, "dh");
    check_shape(a, dh.cols, dx.cols, "a");
    if (dh && dh.dtype != dy.dtype) refuse("dh must have dy's type");
    check_fixed(fixed, dy, "dy", dx, "dx");
    (fixed ? ops().linear_backward_fixed : ops().linear_backward)(dy, w, dh, a, dx, accumulate);
}

void lora_in(View x, View a, float scale, View h, bool accumulate) {
    check_shape(a, h.cols, x.cols, "a");
    check_shape(h, x.rows, a.rows, "h");
    check_f32(a, "a");
    ops().lora_in(x, a, scale, h, accumulate);
}

void lora_gradient(View dh, View x, float scale, View da, bool accumulate) {
    check_shape(dh, x.rows, da.rows, "dh");
    check_shape(da, dh.cols, x.cols, "da");
    check_f32(da, "da");
    ops().lora_gradient(dh, x, scale, da, accumulate);
}

void gather_rows(const Matrix& w, Indices ids, View out) {
    check_shape(out, ids.count, w.cols, "out");
    for (int64_t i = 0; i < ids.count; i++)
        if (ids.data[i] < 0 || ids.data[i] >= w.rows)
            refuse("row " + std::to_string(ids.data[i]) + " is outside the matrix");
    ops().gather_rows(w, ids.data, out);
}

void rms_norm(View x, View weight, float eps, View out, bool accumulate) {
    check_norm(weight, x);
    check_shape(out, x.rows, x.cols, "out");
    if (accumulate) check_f32(out, "out, which is added to,");
    ops().rms_norm(x, weight, eps, out, accumulate);
}

void rms_norm_backward(View dn, View x, View weight, float eps, View dx, bool accumulate) {
    check_norm(weight, x);
    check_norm_backward(dn, x, dx, accumulate);
    ops().rms_norm_backward(dn, x, weight, eps, dx, accumulate);
}

void layer_norm(View x, View weight, View bias, float eps, View out) {
    check_row(weight);
    check_row(bias);
    check_length(weight.cols, x.cols, "weight");
    if (bias) check_length(bias.cols, x.cols, "bias");
    check_shape(out, x.rows, x.cols, "out");
    ops().layer_norm(x, weight, bias, eps, out);
}

void layer_norm_backward(View dn, View x, View weight, float eps, View dx, bool accumulate) {
    check_row(weight);
    check_length(weight.cols, x.cols, "weight");
    check_norm_backward(dn, x, dx, accumulate);
    ops().layer_norm_backward(dn, x, weight, eps, dx, accumulate);
}

void rope(View x, const RopeTable& table, bool inverse, View out) {
    const auto& [cos, sin, head_dim, interleaved] = table;
    if (head_dim <= 0 || head_dim % 2 || x.cols % head_dim) refuse("head_dim must be even and divide x's width");
    check_shape(out, x.rows, x.cols, "out");
    if (cos.cols > head_dim / 2) refuse("cos has more columns than half a head");
    check_shape(cos, x.rows, cos.cols, "cos");
    check_shape(sin, x.rows, cos.cols, "sin");
    check_f32(cos, "cos");
    check_f32(sin, "sin");
    ops().rope(x, table, inverse, out);
}

Activation activation_of(const std::string& name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu") return Activation::gelu;
    if (name == "gelu_tanh") return Activation::gelu_tanh;
    if (name == "relu2") return Activation::relu2;
    if (name == "clipped_silu") return Activation::clipped_silu;
    refuse("activation '" + name + "' is unknown; there are silu, gelu, gelu_tanh, relu2 and clipped_silu");
}

void glu(View gate, View up, Activation form, View out) {
    check_gate(gate, up, form);
    check_shape(out, gate.rows, gate.cols, "out");
    ops().glu(gate, up, form, out);
}

void glu_backward(View da, View gate, View up, Activation form, View dgate, View dup, View a) {
    check_gate(gate, up, form);
    if (bool(up) != bool(dup)) refuse("dup must be given exactly if up is");
    check_shape(da, gate.rows, gate.cols, "da");
    check_shape(dgate, gate.rows, gate.cols, "dgate");
    check_shape(dup, gate.rows, gate.cols, "dup");
    check_shape(a, gate.rows, gate.cols, "a");
    check_f32(da, "da");
    if ((dup && dgate.dtype != dup.dtype) || (a && a.dtype != dgate.dtype))
        refuse("dgate, dup and a must have one type");
    ops().glu_backward(da, gate, up, form, dgate, dup, a);
}

AttentionShape attention_shape(const Attention& about, int64_t queries, int64_t keys, int64_t head_dim) {
    check_sequences(about.cu_q, queries, about.cu_k, keys);
    check_softcap(about.softcap);
    const int64_t window = about.window == kBothWays ? kBothWays : checked_window(about.window);
    check_prefix(about.prefix, about.cu_k, window);
    if (about.sinks) check_length(about.sinks.cols, about.heads, "sinks");
    AttentionShape shape{about.heads,     about.kv_heads,       head_dim, about.scale,   about.cu_q.data,
                         about.cu_k.data, about.cu_q.count - 1, window,   about.softcap, about.prefix.data};
    shape.sinks = numbers(about.sinks);
    return shape;
}

AttentionShape attention_shape(const Attention& about, View q, View k, View v) {
    const int64_t heads = about.heads, kv_heads = about.kv_heads;
    if (heads <= 0 || kv_heads <= 0 || heads % kv_heads || !q.cols || q.cols % heads)
        refuse("heads must be a multiple of kv_heads and divide q's width");
    const int64_t d = q.cols / heads;
    check_shape(k, k.rows, kv_heads * d, "k");
    check_shape(v, k.rows, kv_heads * d, "v");
    if (k.dtype != q.dtype || v.dtype != q.dtype) refuse("q, k and v must have one type");
    return attention_shape(about, q.rows, k.rows, d);
}

void check_attention(const AttentionShape& shape, View q, View k, View out, View lse, View p) {
    check_shape(out, q.rows, q.cols, "out");
    check_shape(lse, shape.heads, q.rows, "lse");
    check_f32(lse, "lse");
    check_probabilities(p, q, k, shape.heads);
}

void check_attention_backward(const AttentionShape& shape, View dout, View q, View k, View out, View lse, View p,
                              View delta, View dq, View dk, View dv) {
    for (const auto& [grad, name] : {std::pair{dout, "dout"}, {out, "out"}, {dq, "dq"}})
        check_shape(grad, q.rows, q.cols, name);
    for (const auto& [grad, name] : {std::pair{dk, "dk"}, {dv, "dv"}}) check_shape(grad, k.rows, k.cols, name);
    for (const auto& [row, name] : {std::pair{lse, "lse"}, {delta, "delta"}})
        check_shape(row, shape.heads, q.rows, name);
    for (const auto& [grad, name] :
         {std::pair{dout, "dout"}, {lse, "lse"}, {delta, "delta"}, {dq, "dq"}, {dk, "dk"}, {dv, "dv"}})
        check_f32(grad, name);
    check_probabilities(p, q, k, shape.heads);
}

void cross_entropy_tile(View logits, Indices targets, int64_t first, float softcap, View reference, View sum,
                        View target_logit, View p, View dh) {
    check_f32(logits, "logits");
    product({first}, "first");
    check_softcap(softcap);
    check_f32(dh, "dh");
    check_shape(p, logits.rows, logits.cols, "p");
    check_shape(dh, logits.rows, dh.cols, "dh");
    check_length(targets.count, logits.rows, "targets");
    check_length(reference.cols, logits.rows, "reference");
    check_length(sum.cols, logits.rows, "sum");
    check_length(target_logit.cols, logits.rows, "target_logit");
    ops().cross_entropy_tile(logits, targets.data, first, softcap, numbers(reference), numbers(sum),
                             numbers(target_logit), p, dh);
}

void cross_entropy_finish(View reference, View sum, View target_logit, View target_rows, float scale, float softcap,
                          View dh, View loss) {
    const int64_t n = loss.cols;
    check_length(reference.cols, n, "reference");
    check_length(sum.cols, n, "sum");
    check_length(target_logit.cols, n, "target_logit");
    check_softcap(softcap);
    if (bool(dh) != bool(target_rows)) refuse("dh and target_rows come together");
    check_shape(dh, n, dh.cols, "dh");
    check_shape(target_rows, n, dh.cols, "target_rows");
    check_f32(dh, "dh");
    check_f32(target_rows, "target_rows");
    ops().cross_entropy_finish(numbers(reference), numbers(sum), numbers(target_logit), target_rows, scale, softcap, dh,
                               numbers(loss), n);
}

void take_rows(View x, Indices rows, View out) {
    check_shape(out, rows.count, x.cols, "out");
    for (int64_t i = 0; i < rows.count; i++)
        if (rows.data[i] < 0 || rows.data[i] >= x.rows) refuse("row " + std::to_string(rows.data[i]) + " is outside x");
    ops().take_rows(x, rows.data, out);
}

void cast(View x, View out) {
    check_shape(out, x.rows, x.cols, "out");
    ops().cast(x, out);
}

double sum_squares(View x) {
    check_f32(x, "x");
    return ops().sum_squares(x);
}

void adamw(View grad, float lr, float beta1, float beta2, float eps, float weight_decay, int64_t step, float grad_scale,
           View param, View m, View v) {
    for (const auto& [state, name] : {std::pair{param, "param"}, {grad, "grad"}, {m, "m"}, {v, "v"}}) {
        check_shape(state, param.rows, param.cols, name);
        check_f32(state, name);
    }
    if (step < 1) refuse("step counts from 1");
    const auto correction = [step](float beta) { return float(1.0 - std::pow(double(beta), double(step))); };
    ops().adamw(grad, {lr, beta1, beta2, eps, weight_decay, correction(beta1), correction(beta2), grad_scale}, param, m,
                v);
}

}  // namespace fb::checked
