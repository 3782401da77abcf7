#include "core/flops.h"
#include "reference/reference.h"

namespace fb::reference {

// One thread, and no scratch from thread_scratch: the loops allocate on the heap.
Cost linear_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, Dtype, TensorType) {
    return {linear_flops(tokens, inputs, outputs, rank, false), 0};
}

Cost linear_backward_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, Dtype) {
    return {linear_flops(tokens, inputs, outputs, rank, true), 0};
}

Cost linear_fixed_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, TensorType weights) {
    return linear_cost(tokens, inputs, outputs, rank, Dtype::f32, weights);
}

Cost linear_rounded_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank, Dtype operand,
                         TensorType weights) {
    return linear_cost(tokens, inputs, outputs, rank, operand, weights);
}

Cost linear_backward_fixed_cost(int64_t tokens, int64_t inputs, int64_t outputs, int64_t rank) {
    return linear_backward_cost(tokens, inputs, outputs, rank, Dtype::f32);
}

Cost lora_in_cost(int64_t tokens, int64_t inputs, int64_t rank) { return {product_flops(tokens, inputs, rank), 0}; }

Cost lora_gradient_cost(int64_t tokens, int64_t inputs, int64_t rank) {
    return {product_flops(tokens, inputs, rank), 0};
}

Cost attention_cost(const AttentionShape& shape, bool) { return {attention_flops(shape, kForwardProducts), 0}; }

Cost attention_backward_cost(const AttentionShape& shape) { return {attention_flops(shape, kBackwardProducts), 0}; }

Cost cached_attention_cost(const CacheShape& shape, int64_t, int64_t head_dim, TensorType) {
    return {cached_attention_flops(shape, head_dim), 0};
}

Cost delta_rule_cost(const DeltaShape& shape, int64_t k_dim, int64_t v_dim) {
    return {delta_flops(shape, k_dim, v_dim, kDeltaProducts), 0};
}

Cost delta_rule_backward_cost(const DeltaShape& shape, int64_t k_dim, int64_t v_dim) {
    return {delta_flops(shape, k_dim, v_dim, kDeltaBackwardProducts), 0};
}

}  // namespace fb::reference
