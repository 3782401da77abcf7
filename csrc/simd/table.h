// The operations of this instruction set; ops.h documents each.
#pragma once
#include "simd/isa.h"

#define FB_STRING_(x) #x
#define FB_STRING(x) FB_STRING_(x)
#define FB_JOIN_(a, b) a##b
#define FB_JOIN(a, b) FB_JOIN_(a, b)
#define FB_OPS(isa) FB_JOIN(isa, _ops)  // the function that returns a set's table

namespace fb::FB_ISA {

void linear(View x, Matrix w, const float* bias, View h, View b, View out, bool accumulate);
void linear_backward(View dy, Matrix w, View dh, View a, View dx, bool accumulate);
void lora_down(View x, View a, float scale, View h, bool accumulate);
void lora_gradient(View dh, View x, float scale, View da, bool accumulate);
void rms_norm(View x, const float* weight, float eps, View out);
void rms_norm_backward(View dn, View x, const float* weight, float eps, View dx);
void rope(View x, const RopeTable& table, bool inverse, View out);
void swiglu(View gate, View up, View out);
void swiglu_backward(View da, View gate, View up, View dgate, View dup, View a);
void attention(View q, View k, View v, const AttentionShape& shape, View out, View lse, View p);
void attention_backward(View dout, View q, View k, View v, View out, View lse, View p, const AttentionShape& shape,
                        View delta, View dq, View dk, View dv);
void cross_entropy_tile(View logits, int64_t first, const int32_t* targets, float* reference, float* sum,
                        float* target_logit, View p, View dh);
void cross_entropy_finish(const float* reference, const float* sum, const float* target_logit, View target_rows,
                          float scale, View dh, float* loss, int64_t n);
void gather_rows(Matrix w, const int32_t* ids, View out);
void dequantize(Matrix w, View out);
void cast(View x, View out);
double sum_squares(View x);
void adamw(View param, View grad, View m, View v, const AdamW& options);
void sgd(View param, View grad, float lr, float weight_decay, float grad_scale);

}  // namespace fb::FB_ISA
