// Runs a recorded step on a model: the gradients of an adapter for a batch.
#pragma once
#include <functional>

#include "core/checked.h"
#include "program/gguf.h"
#include "program/recording.h"
#include "program/rows.h"

namespace fb {

// Supervised tokens have a target of at least 0; others -1.
struct Batch {
    std::vector<int32_t> tokens, targets, positions, boundaries;  // (T), (T), (T), (S + 1)
};

class Program {
public:
    // `folder`: where gradients are kept, and the other rows of the adapter; empty: in memory.
    Program(const std::string& model, const std::string& recording, const std::string& folder);

    // Adds the gradients of scale * loss to `sums`, and returns the loss in nats. `goes_on` is asked between two
    // operations; if it says no, std::runtime_error is thrown.
    double gradients(const Batch& batch, double scale, const std::function<bool()>& goes_on);

    const Recording& recording() const { return recording_; }
    Rows values, sums;  // the adapter's values, and its gradients

private:
    friend struct Operation;

    Gguf model_;
    Recording recording_;
    std::vector<Matrix> weights_;
    std::vector<const float*> vectors_;
    std::vector<float> copies_;  // of the model's vectors, so that reading them maps no pages
    std::shared_ptr<uint8_t> scratch_, kept_, checkpoints_;
};

}  // namespace fb
