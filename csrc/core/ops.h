// The table of operations. Every instruction set provides one. That of `reference` is the oracle for the others.
// core/ops.def documents the operations.
#pragma once
#include "core/key_cache.h"
#include "core/matrix.h"
#include "core/types.h"

namespace fb {

struct RopeTable {
    View cos, sin;  // (T, r/2) f32: the angles of each token's position; the first r columns of a head are rotated
    int64_t head_dim;
    bool interleaved;  // true: pairs (2i, 2i+1), GGUF's llama order; false: pairs (i, i + r/2)
};

// Of the gate g. gelu: exact; gelu_tanh: GELU by its tanh approximation; relu2: relu(g)^2. clipped_silu, that of
// gpt-oss, also changes up: a = c sigmoid(1.702 c) (v + 1) with c = min(g, 7) and v = up clipped to [-7, 7].
enum class Activation : int { silu, gelu, gelu_tanh, relu2, clipped_silu };

// The window of attention that is not causal, as in encoders.
constexpr int64_t kBothWays = -1;

struct AttentionShape {
    int64_t heads, kv_heads, head_dim;
    float scale;
    // Sequence s has query rows [cu_q[s], cu_q[s+1]) and key rows [cu_k[s], cu_k[s+1]). Its last query sees all of its
    // keys, the one before it all but the last, and so on (in training cu_q == cu_k).
    const int32_t* cu_q;
    const int32_t* cu_k;
    int64_t sequences;
    // A query sees at most this many keys, including its own; 0: no limit; kBothWays: all keys of its sequence.
    int64_t window;
    float softcap = 0;  // a scaled score s becomes softcap * tanh(s / softcap); 0: no cap
    // Sequence s continues sequence prefix[s], if that is not -1: its queries also see all keys of that sequence. The
    // sequences that continue one follow it without a gap, and a window is wider than any of them with its prefix.
    const int32_t* prefix = nullptr;
    // (H), may be absent: a logit per head that takes part in the softmax of each of its rows, with a value of zero.
    const float* sinks = nullptr;
};

enum class Gate : int { silu, sigmoid };

// Heads of the gated delta rule: q and k have k_heads, v has v_heads, a multiple.
struct DeltaShape {
    int64_t k_heads, v_heads;
    bool tiled;         // V head h reads K head h % k_heads; else K head h / (v_heads / k_heads)
    const int32_t* cu;  // sequence s has rows [cu[s], cu[s+1])
    int64_t sequences;

    FB_INLINE int64_t k_head(int64_t v_head) const { return tiled ? v_head % k_heads : v_head / (v_heads / k_heads); }
};

struct AdamW {
    float lr, beta1, beta2, eps, weight_decay;
    float correction1, correction2;  // 1 - beta^step
    float grad_scale;                // multiplies the gradient first (clipping, 1 / tokens)
};

// The cost of a call.
struct Cost {
    double flops;           // arithmetic of its products
    int64_t scratch_bytes;  // bytes that each thread requests from thread_scratch
};

struct Ops {
    const char* name;
#define FB_OP(operation, result, parameters) result(*operation) parameters;
#include "core/ops.def"
};

// Defined by the translation units compiled for each instruction set; null if this build has none.
const Ops* reference_ops();
const Ops* portable_ops();
const Ops* avx2_ops();
const Ops* avx512_ops();
const Ops* avx512bf16_ops();
const Ops* neon_bf16_ops();

}  // namespace fb
