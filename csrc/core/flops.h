// Counts the arithmetic of products: a multiplication and an addition each count. Equal for all instruction sets.
#pragma once
#include <algorithm>

#include "core/ops.h"

namespace fb {

FB_INLINE double product_flops(int64_t rows, int64_t depth, int64_t cols) {
    return 2.0 * double(rows) * double(depth) * double(cols);
}

// x W^T + h b, and dy W + dh a: a weight (N, K) beside LoRA's factor.
FB_INLINE double linear_flops(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, bool backward) {
    return product_flops(tokens, inputs, outputs) + product_flops(tokens, rank, backward ? inputs : outputs);
}

// Attention's products. Forward: q k and p v. Backward: q k again, dout v, and one each for dq, dk and dv.
constexpr int kForwardProducts = 2, kBackwardProducts = 5;

// `products` of a query with a key, or of that size, for each visible pair.
FB_INLINE double attention_flops(const AttentionShape& s, int products) {
    double pairs = 0;
    for (int64_t i = 0; i < s.sequences; i++) {
        const int64_t queries = s.cu_q[i + 1] - s.cu_q[i], keys = s.cu_k[i + 1] - s.cu_k[i];
        // Query j sees keys - queries + 1 + j keys, or `limit` if that is fewer.
        const int64_t limit = s.window > 0 ? std::min(s.window, keys) : keys, first = keys - queries + 1;
        if (s.window == kBothWays) {
            pairs += double(queries) * double(keys);
            continue;
        }
        const int64_t growing = std::clamp<int64_t>(limit - first + 1, 0, queries);
        if (s.prefix && s.prefix[i] >= 0)
            pairs += double(queries) * double(s.cu_k[s.prefix[i] + 1] - s.cu_k[s.prefix[i]]);
        pairs += double(growing) * double(2 * first + growing - 1) / 2 + double(queries - growing) * double(limit);
    }
    return 2.0 * products * pairs * double(s.heads * s.head_dim);
}

FB_INLINE double cached_attention_flops(const CacheShape& s, int64_t head_dim) {
    double pairs = 0;
    for (int64_t i = 0; i < s.queries; i++) pairs += double(std::max<int64_t>(0, s.last_key(i) - s.first_key(i)));
    return 2.0 * kForwardProducts * pairs * double(s.heads * head_dim);
}

// The delta rule's products of a token with a state. Forward: S^T k, S^T q and k d^T. Backward: S^T k and k d^T again,
// and six for the gradients.
constexpr int kDeltaProducts = 3, kDeltaBackwardProducts = 8;

FB_INLINE double delta_flops(const DeltaShape& s, int64_t k_dim, int64_t v_dim, int products) {
    return products * product_flops(s.cu[s.sequences] * s.v_heads, k_dim, v_dim);
}

}  // namespace fb
