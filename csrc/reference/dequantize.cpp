#include <vector>

#include "quant/decode.h"
#include "reference/reference.h"

namespace fb::reference {

static void decode_to(const Matrix& w, int64_t row, const View& out, int64_t out_row) {
    std::vector<float> weights(size_t(w.cols));
    decode_row(w.type, w.row(row), 0, w.cols, weights.data());
    for (int64_t c = 0; c < w.cols; ++c) store(out, out_row, c, weights[size_t(c)]);
}

// out (n, D) = rows ids (n) of w (rows, D)
void gather_rows(Matrix w, const int32_t* ids, View out) {
    for (int64_t i = 0; i < out.rows; ++i) decode_to(w, ids[i], out, i);
}

// out (rows, cols) = w
void dequantize(Matrix w, View out) {
    for (int64_t r = 0; r < w.rows; ++r) decode_to(w, r, out, r);
}

}  // namespace fb::reference
