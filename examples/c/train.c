/* Train a recorded step from C.
 *
 *     featherback record model.gguf --out recorded --tokens 256
 *     cc train.c -lfeatherback -o train
 *     ./train model.gguf recorded tokens.txt 100 .
 *
 * tokens.txt has a sequence of token ids on each line. The last word is a folder for the adapter's values and the
 * optimiser's states; without it they are in memory. The adapter is written to recorded/adapter_model.safetensors. */
#include <featherback.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 65536

static int32_t *sequences[MOST];
static int32_t lengths[MOST];

/* Reads the sequences, each cut to `most` tokens, and returns how many there are. */
static int read_sequences(FILE *file, int64_t most) {
    int count = 0;
    static char line[1 << 16];
    while (count < MOST && fgets(line, sizeof line, file)) {
        int32_t *ids = malloc((size_t)most * sizeof *ids), n = 0;
        for (char *word = strtok(line, " \n"); word && n < most; word = strtok(NULL, " \n")) ids[n++] = atoi(word);
        if (n < 2) {
            free(ids);
            continue;
        }
        sequences[count] = ids;
        lengths[count++] = n;
    }
    return count;
}

int main(int argc, char **argv) {
    if (argc < 5) return fprintf(stderr, "usage: train MODEL RECORDED TOKENS STEPS [FOLDER]\n"), 2;
    char recording[4096], adapter[4096];
    snprintf(recording, sizeof recording, "%s/step.recording", argv[2]);
    snprintf(adapter, sizeof adapter, "%s/adapter_model.safetensors", argv[2]);
    fb_training *training = fb_open(argv[1], recording, adapter, argc > 5 ? argv[5] : NULL, 0);
    if (!training || *fb_error(training)) return fprintf(stderr, "error: %s\n", fb_error(training)), 1;
    FILE *file = fopen(argv[3], "r");
    if (!file) return perror(argv[3]), 1;
    const int count = read_sequences(file, fb_most_tokens(training)), steps = atoi(argv[4]);
    fclose(file);
    if (!count) return fprintf(stderr, "error: %s has no sequences\n", argv[3]), 1;
    for (int step = 0; step < steps; step++) {
        const int32_t *tokens = sequences[step % count], boundaries[2] = {0, lengths[step % count]};
        const double targets = lengths[step % count] - 1;
        const float rate = 1e-3f * (1.0f - (float)step / (float)steps);
        double loss, norm;
        if (fb_gradients(training, tokens, NULL, boundaries, 1, 1 / targets, &loss, NULL) ||
            fb_update(training, rate, NULL, &norm))
            return fprintf(stderr, "error: %s\n", fb_error(training)), 1;
        printf("step %d: loss %.4f, gradient %.3f\n", step + 1, loss / targets, norm);
        fflush(stdout);
    }
    if (fb_save(training, adapter)) return fprintf(stderr, "error: %s\n", fb_error(training)), 1;
    fb_close(training);
    return 0;
}
