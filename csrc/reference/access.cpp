#include "reference/reference.h"

namespace fb::reference {

double load(const View& view, int64_t row, int64_t col) {
    switch (view.dtype) {
        case Dtype::f32: return view.row<float>(row)[col];
        case Dtype::bf16: return bf16_to_f32(view.row<uint16_t>(row)[col]);
        case Dtype::f64: return view.row<double>(row)[col];
    }
    return 0;
}

void store(const View& view, int64_t row, int64_t col, double value) {
    switch (view.dtype) {
        case Dtype::f32: view.row<float>(row)[col] = float(value); return;
        case Dtype::bf16: view.row<uint16_t>(row)[col] = f32_to_bf16(float(value)); return;
        case Dtype::f64: view.row<double>(row)[col] = value; return;
    }
}

void write(const View& view, int64_t row, int64_t col, double value, bool accumulate) {
    store(view, row, col, accumulate ? load(view, row, col) + value : value);
}

}  // namespace fb::reference
