// Operations that check their arguments before they compute. Whoever takes arguments from outside calls them: the
// bindings, from Python, and programs, from a file. They throw std::invalid_argument. core/ops.def documents them.
#pragma once
#include "core/checks.h"
#include "core/dispatch.h"

namespace fb::checked {

struct Indices {
    const int32_t* data = nullptr;
    int64_t count = 0;
};

struct Attention {
    int64_t heads, kv_heads;
    Indices cu_q, cu_k, prefix;  // prefix may be absent
    float scale;
    int64_t window;
    float softcap;
    View sinks;  // (1, H), may be absent
};

// bias (1, N), may be absent.
void linear(View x, const Matrix& w, View bias, View h, View b, View out, bool accumulate, bool fixed, bool rounded);
void linear_backward(View dy, const Matrix& w, View dh, View a, View dx, bool accumulate, bool fixed);
void lora_in(View x, View a, float scale, View h, bool accumulate);
void lora_gradient(View dh, View x, float scale, View da, bool accumulate);
void gather_rows(const Matrix& w, Indices ids, View out);
// Weights and biases of norms are (1, n).
void rms_norm(View x, View weight, float eps, View out, bool accumulate);
void rms_norm_backward(View dn, View x, View weight, float eps, View dx, bool accumulate);
void layer_norm(View x, View weight, View bias, float eps, View out);
void layer_norm_backward(View dn, View x, View weight, float eps, View dx, bool accumulate);
void rope(View x, const RopeTable& table, bool inverse, View out);
Activation activation_of(const std::string& name);
void glu(View gate, View up, Activation form, View out);
void glu_backward(View da, View gate, View up, Activation form, View dgate, View dup, View a);
// Refuses boundaries of sequences that do not fit, and prefixes.
AttentionShape attention_shape(const Attention& about, int64_t queries, int64_t keys, int64_t head_dim);
AttentionShape attention_shape(const Attention& about, View q, View k, View v);
void check_attention(const AttentionShape& shape, View q, View k, View out, View lse, View p);
void check_attention_backward(const AttentionShape& shape, View dout, View q, View k, View out, View lse, View p,
                              View delta, View dq, View dk, View dv);
// reference, sum, target_logit and loss are (1, n).
void cross_entropy_tile(View logits, Indices targets, int64_t first, float softcap, View reference, View sum,
                        View target_logit, View p, View dh);
void cross_entropy_finish(View reference, View sum, View target_logit, View target_rows, float scale, float softcap,
                          View dh, View loss);
void take_rows(View x, Indices rows, View out);
void cast(View x, View out);
double sum_squares(View x);
void adamw(View grad, float lr, float beta1, float beta2, float eps, float weight_decay, int64_t step, float grad_scale,
           View param, View m, View v);

}  // namespace fb::checked
