/* libfeatherback: fine-tune a quantised language model by a recorded step, without Python.
 *
 * `featherback record` makes a recording, once for a model and the shape of an adapter, and an adapter to begin with
 * (docs/recording.md). Gradients are exact, and have the bits
 * that Python computes with the same number of tokens on the same machine.
 *
 * A handle belongs to one thread at a time. Threads of the kernels belong to the process. All sizes are counts of
 * elements, all paths UTF-8. Functions that return int return 0, or -1 after an error, which fb_error explains. */
#ifndef FEATHERBACK_H
#define FEATHERBACK_H
#include <stdint.h>

#ifdef _WIN32
#define FB_API __declspec(dllexport)
#else
#define FB_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fb_training fb_training;

/* AdamW with decoupled weight decay; clip_norm 0: gradients are not clipped. */
typedef struct {
    float beta1, beta2, eps, weight_decay;
    double clip_norm;
} fb_adamw;

/* 0.9, 0.999, 1e-8, 0, and 1: what `featherback train` uses. */
FB_API fb_adamw fb_adamw_defaults(void);

/* model: a GGUF file. recording: made for it. adapter: the values to begin with, a file in PEFT's form
 * (adapter_model.safetensors). folder: where the adapter's values, gradients and the optimiser's states are kept during
 * training, in files that vanish with the handle; NULL: in memory. threads: 0 for one per processor.
 * Returns a handle to be closed, also after an error; NULL only if there is no memory for it. */
FB_API fb_training* fb_open(const char* model, const char* recording, const char* adapter, const char* folder,
                            int threads);
FB_API void fb_close(fb_training*);

/* The last error of a handle, in English; "" if there was none. Valid until the next call. */
FB_API const char* fb_error(const fb_training*);

/* The most tokens of a batch, and the number of tokens of the vocabulary. */
FB_API int64_t fb_most_tokens(const fb_training*);
FB_API int64_t fb_vocabulary(const fb_training*);

/* Called between two operations of fb_gradients; it stops with an error if that returns something else than 0. */
FB_API void fb_set_progress(fb_training*, int (*progress)(void* user), void* user);

/* Adds to the gradients those of scale * loss, where loss is the sum of - log p, in nats, over the supervised tokens.
 * tokens (T): the sequences, one after the other. supervised (T): not 0 for tokens that the model is to learn; NULL:
 * all. The first token of a sequence is never learnt. boundaries (sequences + 1): sequence s is tokens
 * [boundaries[s], boundaries[s + 1]). loss: receives the sum; targets: the number of supervised tokens. Both may be
 * NULL. After an error, all gradients are 0. */
FB_API int fb_gradients(fb_training*, const int32_t* tokens, const uint8_t* supervised, const int32_t* boundaries,
                        int64_t sequences, double scale, double* loss, int64_t* targets);

/* Updates the adapter by its gradients, which then are 0. options: NULL for the defaults. norm: receives the length of
 * the gradients before clipping; may be NULL. Gradients that are not finite are an error: they become 0, and the
 * adapter stays as it is. After another error (a full disk), close the handle: a part of the adapter may be updated. */
FB_API int fb_update(fb_training*, float learning_rate, const fb_adamw* options, double* norm);

/* Writes the adapter's values in PEFT's form: the file adapter_model.safetensors, beside which PEFT expects the
 * adapter_config.json that came with the recording. The file is replaced when it is complete. */
FB_API int fb_save(fb_training*, const char* path);

#ifdef __cplusplus
}
#endif
#endif
