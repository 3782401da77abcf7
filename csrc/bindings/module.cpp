#include "bindings/arrays.h"

NB_MODULE(_native, m) {
    m.doc() = "Featherback's native kernels. csrc/core/ops.def documents every operation.";
    fb::bind_matrix(m);
    fb::bind_products(m);
    fb::bind_attention(m);
    fb::bind_delta_rule(m);
    fb::bind_key_cache(m);
    fb::bind_gate(m);
    fb::bind_rows(m);
    fb::bind_some_rows(m);
    fb::bind_loss(m);
    fb::bind_optim(m);
    fb::bind_runtime(m);
    fb::bind_text(m);
}
