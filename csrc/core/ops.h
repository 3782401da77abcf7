// The table of operations. Every instruction set fills one; `reference` fills one too and is the oracle of the others.
// core/ops.def says what each operation computes.
#pragma once
#include "core/matrix.h"
#include "core/types.h"

namespace fb {

struct RopeTable {
    View cos, sin;  // (T, r/2) f32: the angles of each token's position; of a head, the first r columns are rotated
    int64_t head_dim;
    bool interleaved;  // true: pairs (2i, 2i+1), GGUF's llama order; false: pairs (i, i + r/2)
};

enum class Activation : int { silu, gelu_tanh };  // of the gate; gelu_tanh: GELU by its tanh approximation

struct AttentionShape {
    int64_t heads, kv_heads, head_dim;
    float scale;
    // Sequence s owns query rows [cu_q[s], cu_q[s+1]) and key rows [cu_k[s], cu_k[s+1]); its last query sees all of
    // its keys, the one before all but the last, and so on (training: cu_q == cu_k).
    const int32_t* cu_q;
    const int32_t* cu_k;
    int64_t sequences;
    int64_t window;     // a query sees at most this many keys, itself included; 0: no limit
    float softcap = 0;  // a scaled score s becomes softcap * tanh(s / softcap); 0: it stays as it is
    // Sequence s continues sequence prefix[s], if that is not -1: its queries see all keys of that one as well. Those
    // that continue one follow it without a gap; a window is then wider than any of them with its prefix. Null: none.
    const int32_t* prefix = nullptr;
};

struct AdamW {
    float lr, beta1, beta2, eps, weight_decay;
    float correction1, correction2;  // 1 - beta^step
    float grad_scale;                // multiplies the gradient first (clipping, 1 / tokens)
};

// What a call takes.
struct Cost {
    double flops;           // of its products
    int64_t scratch_bytes;  // that each thread asks of thread_scratch
};

struct Ops {
    const char* name;
#define FB_OP(operation, result, parameters) result(*operation) parameters;
#include "core/ops.def"
};

// Filled by the translation units compiled for each instruction set; null when this build has none.
const Ops* reference_ops();
const Ops* portable_ops();
const Ops* avx2_ops();
const Ops* avx512_ops();
const Ops* avx512bf16_ops();
const Ops* neon_bf16_ops();

}  // namespace fb
