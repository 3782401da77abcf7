// The table of operations. Every instruction set fills one; `reference` fills one too and is the oracle of the others.
//
// Conventions
//   T tokens, D width, K in_features, N out_features, r rank, H heads, d head_dim.
//   An *operand* is what a matrix product reads: float32 when computing in fp32, bf16 when computing in bf16.
//   Products accumulate in float32 (double in the reference). Views named `out`, `dx`, ... are overwritten unless an
//   argument says `accumulate`. Inputs and outputs do not overlap unless stated.
//   The reference accepts any mix of f32, bf16 and f64 views; the vector kernels accept f32 and bf16 where stated.
#pragma once
#include "core/types.h"

namespace fb {

struct RopeTable {
    View cos, sin;  // (T, d/2) f32: the angles of each token's position
    int64_t head_dim;
    bool interleaved;  // true: pairs (2i, 2i+1), GGUF's llama order; false: pairs (i, i + d/2)
};

struct AttentionShape {
    int64_t heads, kv_heads, head_dim;
    float scale;
    // Sequence s owns query rows [cu_q[s], cu_q[s+1]) and key rows [cu_k[s], cu_k[s+1]); its last query sees all of
    // its keys, the one before all but the last, and so on (training: cu_q == cu_k).
    const int32_t* cu_q;
    const int32_t* cu_k;
    int64_t sequences;
    int64_t window;  // a query sees at most this many keys, itself included; 0: no limit
};

struct AdamW {
    float lr, beta1, beta2, eps, weight_decay;
    float correction1, correction2;  // 1 - beta^step
    float grad_scale;                // multiplies the gradient first (clipping, 1 / tokens)
};

struct Ops {
    const char* name;

    // out (T,N) (+)= x (T,K) W^T + bias (N) + h (T,r) b (r,N).       x, h operands; b f32; bias, h and b may be absent
    void (*linear)(View x, Matrix w, const float* bias, View h, View b, View out, bool accumulate);
    // dx (T,K) (+)= dy (T,N) W + dh (T,r) a (r,K).                   dy, dh operands; a f32; dh and a may be absent
    void (*linear_backward)(View dy, Matrix w, View dh, View a, View dx, bool accumulate);

    // h (T,r) (+)= scale * x (T,K) a (r,K)^T.                        x operand; a f32; h f32 or bf16
    void (*lora_down)(View x, View a, float scale, View h, bool accumulate);
    // da (r,K) (+)= scale * dh (T,r)^T x (T,K).                      dh, x operands; da f32
    void (*lora_gradient)(View dh, View x, float scale, View da, bool accumulate);

    // out (T,D) = x * weight / sqrt(mean(x^2) + eps).                x f32 or bf16; weight (D) f32; out operand
    void (*rms_norm)(View x, const float* weight, float eps, View out);
    // dx (T,D) += the gradient of rms_norm's input, from dn (T,D) f32 and that input x.
    void (*rms_norm_backward)(View dn, View x, const float* weight, float eps, View dx);

    // out (T, heads*d) = x rotated by the table's angles, or by their opposites if inverse. out may be x.
    void (*rope)(View x, const RopeTable& table, bool inverse, View out);

    // out (T,F) = silu(gate) * up.                                   gate, up f32; out operand
    void (*swiglu)(View gate, View up, View out);
    // dgate, dup (T,F) from da (T,F) f32; dgate, dup operands. a (T,F), may be absent = swiglu's out, anew.
    void (*swiglu_backward)(View da, View gate, View up, View dgate, View dup, View a);

    // Causal grouped-query attention within each sequence. q (Tq, H*d), k, v (Tk, Hkv*d) f32 or bf16; out (Tq, H*d);
    // lse (H, Tq) f32: the log of each row's sum of exponentials, all that the backward needs (may be absent).
    // p (H*Tq, Tk) f32 may be absent: it receives the probabilities of visible pairs, row head * Tq + query (other
    // cells hold anything), for a method that keeps them as plain autodiff does.
    void (*attention)(View q, View k, View v, const AttentionShape& shape, View out, View lse, View p);
    // dq (Tq, H*d), dk, dv (Tk, Hkv*d) f32 from dout f32. delta (H, Tq) f32 is scratch: sum(dout * out) a row. p as
    // the forward left it, or absent: then the probabilities are recomputed, with the same result to the last bit.
    void (*attention_backward)(View dout, View q, View k, View v, View out, View lse, View p,
                               const AttentionShape& shape, View delta, View dq, View dk, View dv);

    // One tile of the fused head and cross-entropy, in a single pass over the vocabulary (online softmax).
    // logits (n, tile) f32 are the columns [first, first + tile) of each row's logits. State a row, f32 (n):
    //   reference (start at -inf): exponent offset; sum (start at 0): sum of exp(logit - reference) without the target;
    //   target_logit. p (n, tile) operand, may be absent = exp(logit - reference), 0 at the target.
    // When a tile raises a row's maximum far above its reference, the reference moves and that row of dh (n, D) f32
    // (the running sum of p W, may be absent) and its sum are rescaled.
    void (*cross_entropy_tile)(View logits, int64_t first, const int32_t* targets, float* reference, float* sum,
                               float* target_logit, View p, View dh);
    // After the last tile: loss (n) f32 in nats, and, if dh is present, in place
    //   dh = scale * (dh / total - (1 - p_target) * target_row), target_rows (n, D) f32 = rows of the head.
    void (*cross_entropy_finish)(const float* reference, const float* sum, const float* target_logit, View target_rows,
                                 float scale, View dh, float* loss, int64_t n);

    // out (n, D) = rows `ids` of W, dequantised.                     out f32 or bf16
    void (*gather_rows)(Matrix w, const int32_t* ids, View out);
    // out (rows, cols) = W dequantised.                              out f32 or bf16
    void (*dequantize)(Matrix w, View out);

    void (*cast)(View x, View out);                                                      // out = x in out's type
    double (*sum_squares)(View x);                                                       // in double
    void (*adamw)(View param, View grad, View m, View v, const AdamW& options);          // decoupled decay, f32
    void (*sgd)(View param, View grad, float lr, float weight_decay, float grad_scale);  // f32
};

// Filled by the translation units compiled for each instruction set; null when this build has none.
const Ops* reference_ops();
const Ops* portable_ops();
const Ops* avx2_ops();
const Ops* avx512_ops();
const Ops* avx512bf16_ops();
const Ops* amx_bf16_ops();
const Ops* neon_bf16_ops();

}  // namespace fb
