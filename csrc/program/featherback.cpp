#include "program/featherback.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "core/thread_pool.h"
#include "program/peft_file.h"
#include "program/program.h"

namespace {

using namespace fb;

constexpr int64_t kTogether = 1 << 20;  // gradients whose squares are summed by one call: a part of the sum's bits
constexpr int kPiece = 1 << 16;         // elements that are updated together

class Training {
public:
    Training(const std::string& model, const std::string& recording, const std::string& adapter,
             const std::string& folder)
        : program_(model, recording, folder), m_(layers(), size(), folder), v_(layers(), size(), folder) {
        read_peft(adapter, program_.recording(), program_.values);
    }

    const Recording& recording() const { return program_.recording(); }

    double gradients(const Batch& batch, double scale, const std::function<bool()>& goes_on) {
        if (!std::isfinite(scale)) throw std::runtime_error("the scale of the loss is not finite");
        try {
            return program_.gradients(batch, scale, goes_on);
        } catch (...) {
            program_.sums.clear();  // a part of a batch's gradients is none
            throw;
        }
    }

    double update(float rate, const fb_adamw& options) {
        const bool possible = rate >= 0 && options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 &&
                              options.beta2 < 1 && options.eps > 0 && options.weight_decay >= 0 &&
                              options.clip_norm >= 0 && std::isfinite(rate + options.eps + options.weight_decay);
        if (!possible) throw std::runtime_error("an option of the update is not possible");
        const double norm = this->norm();
        if (!std::isfinite(norm)) {
            program_.sums.clear();
            throw std::runtime_error("the gradients are not finite");
        }
        const float scale = float(norm > options.clip_norm && options.clip_norm > 0 ? options.clip_norm / norm : 1.0);
        std::vector<float> p(kPiece), g(kPiece), m(kPiece), v(kPiece);
        step_++;
        for (int64_t layer = 0; layer < layers(); layer++)
            for (int64_t first = 0; first < size(); first += kPiece) {
                const int64_t n = std::min<int64_t>(kPiece, size() - first);
                const auto row = [n](std::vector<float>& values) { return View{values.data(), Dtype::f32, 1, n, n}; };
                program_.values.read(layer, first, n, p.data());
                program_.sums.read(layer, first, n, g.data());
                m_.read(layer, first, n, m.data());
                v_.read(layer, first, n, v.data());
                checked::adamw(row(g), rate, options.beta1, options.beta2, options.eps, options.weight_decay, step_,
                               scale, row(p), row(m), row(v));
                std::fill_n(g.data(), n, 0.0f);
                program_.values.write(layer, first, n, p.data());
                program_.sums.write(layer, first, n, g.data());
                m_.write(layer, first, n, m.data());
                v_.write(layer, first, n, v.data());
            }
        return norm;
    }

    void save(const std::string& path) const { write_peft(path, program_.recording(), program_.values); }

private:
    int64_t layers() const { return recording().layers; }
    int64_t size() const { return recording().size; }

    double norm() const {
        std::vector<float> part(static_cast<size_t>(std::min<int64_t>(size(), kTogether)));
        double total = 0;
        for (int64_t layer = 0; layer < layers(); layer++)
            for (int64_t first = 0; first < size(); first += kTogether) {
                const int64_t n = std::min<int64_t>(kTogether, size() - first);
                program_.sums.read(layer, first, n, part.data());
                total += checked::sum_squares({part.data(), Dtype::f32, 1, n, n});
            }
        return std::sqrt(total);
    }

    Program program_;
    Rows m_, v_;
    int64_t step_ = 0;
};

Batch batch_of(const int32_t* tokens, const uint8_t* supervised, const int32_t* boundaries, int64_t sequences,
               const Recording& recording) {
    if (!tokens || !boundaries || sequences < 1 || sequences > recording.tokens)
        refuse("a batch needs a sequence of tokens");
    Batch batch;
    batch.boundaries.assign(boundaries, boundaries + sequences + 1);
    if (batch.boundaries[0] != 0) refuse("the boundaries must begin with 0");
    for (int64_t s = 0; s < sequences; s++) {
        const int32_t first = batch.boundaries[size_t(s)], last = batch.boundaries[size_t(s) + 1];
        if (last <= first || last > recording.tokens)
            refuse("boundaries must rise, up to at most " + std::to_string(recording.tokens));
        for (int32_t t = first; t < last; t++) {
            if (tokens[t] < 0 || tokens[t] >= recording.vocabulary)
                refuse("token " + std::to_string(tokens[t]) + " is outside the vocabulary");
            const bool learnt = t + 1 < last && (!supervised || supervised[t + 1]);
            batch.tokens.push_back(tokens[t]);
            batch.targets.push_back(learnt ? tokens[t + 1] : -1);
            batch.positions.push_back(t - first);
        }
    }
    return batch;
}

}  // namespace

struct fb_training {
    std::unique_ptr<Training> training;
    std::string error;
    int (*progress)(void*) = nullptr;
    void* user = nullptr;

    // Runs what may fail, and keeps the reason.
    template <class Work>
    int guarded(const Work& work) {
        error.clear();
        try {
            work();
            return 0;
        } catch (const std::bad_alloc&) {
            error = "there is not enough memory";
        } catch (const std::exception& problem) {
            error = problem.what();
        }
        return -1;
    }
    Training& opened() {
        if (!training) throw std::runtime_error("this handle has no open model");
        return *training;
    }
};

fb_adamw fb_adamw_defaults(void) { return {0.9f, 0.999f, 1e-8f, 0.0f, 1.0}; }

fb_training* fb_open(const char* model, const char* recording, const char* adapter, const char* folder, int threads) {
    auto* made = new (std::nothrow) fb_training;
    if (!made) return nullptr;
    made->guarded([&] {
        if (!model || !recording || !adapter) throw std::runtime_error("model, recording and adapter must be named");
        const int processors = int(std::thread::hardware_concurrency());
        constexpr int kMostThreads = 1024;
        if (threads < 0 || threads > kMostThreads)
            throw std::runtime_error("the number of threads is not from 0 to 1024");
        set_threads(threads > 0 ? threads : processors > 0 ? processors : 1);
        made->training = std::make_unique<Training>(model, recording, adapter, folder ? folder : "");
    });
    return made;
}

void fb_close(fb_training* handle) { delete handle; }

const char* fb_error(const fb_training* handle) {
    return handle ? handle->error.c_str() : "there is not enough memory";
}

int64_t fb_most_tokens(const fb_training* handle) {
    return handle && handle->training ? handle->training->recording().tokens : 0;
}

int64_t fb_vocabulary(const fb_training* handle) {
    return handle && handle->training ? handle->training->recording().vocabulary : 0;
}

void fb_set_progress(fb_training* handle, int (*progress)(void*), void* user) {
    if (!handle) return;
    handle->progress = progress;
    handle->user = user;
}

int fb_gradients(fb_training* handle, const int32_t* tokens, const uint8_t* supervised, const int32_t* boundaries,
                 int64_t sequences, double scale, double* loss, int64_t* targets) {
    if (!handle) return -1;
    return handle->guarded([&] {
        Training& training = handle->opened();
        const Batch batch = batch_of(tokens, supervised, boundaries, sequences, training.recording());
        const double found =
            training.gradients(batch, scale, [&] { return !handle->progress || handle->progress(handle->user) == 0; });
        if (loss) *loss = found;
        if (targets)
            *targets = std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t >= 0; });
    });
}

int fb_update(fb_training* handle, float learning_rate, const fb_adamw* options, double* norm) {
    if (!handle) return -1;
    return handle->guarded([&] {
        const double found = handle->opened().update(learning_rate, options ? *options : fb_adamw_defaults());
        if (norm) *norm = found;
    });
}

int fb_save(fb_training* handle, const char* path) {
    if (!handle) return -1;
    return handle->guarded([&] {
        if (!path) throw std::runtime_error("no file is named");
        handle->opened().save(path);
    });
}
