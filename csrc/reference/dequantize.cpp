#include <cmath>
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

// For each block: scale = max |x| / 127, rounded up to half precision;   code = nearest(x / scale)
void encode(View x, uint8_t* out, int64_t row_bytes) {
    constexpr BlockShape shape = block_shape(TensorType::Q8_0);
    for (int64_t r = 0; r < x.rows; ++r) {
        uint8_t* block = out + r * row_bytes;
        for (int64_t first = 0; first < x.cols; first += shape.weights, block += shape.bytes) {
            float values[shape.weights] = {}, most = 0;
            for (int64_t i = 0; i < shape.weights && first + i < x.cols; ++i) {
                values[i] = float(load(x, r, first + i));
                if (std::isnan(values[i]) || std::fabs(values[i]) > most) most = std::fabs(values[i]);
                if (std::isnan(most)) break;
            }
            const uint16_t half = f16_above(most / 127);
            const float scale = f16_to_f32(half), inverse = 1 / scale;
            std::memcpy(block, &half, sizeof half);
            for (int i = 0; i < shape.weights; ++i)
                block[2 + i] =
                    scale > 0 && std::isfinite(scale) ? uint8_t(int8_t(std::nearbyint(values[i] * inverse))) : 0;
        }
    }
}

}  // namespace fb::reference
