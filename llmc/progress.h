// progress.h: what a person sees of a running training: one live line on a terminal, plain lines elsewhere.
//
//     step  120/500 [=====>              ] loss 2.5713 (2.6012) norm 0.81 lr 9.4e-04  21.3k tok/s  ETA 0:42
//
// Loss is this step's, in brackets its smoothed value (exponential mean, bias-corrected). The first step is left out of
// the speed: it pays for page faults and thread start.
#ifndef LLMC_PROGRESS_H
#define LLMC_PROGRESS_H

#include <math.h>
#include <sys/ioctl.h>

#include "utils.h"

#define LOSS_SMOOTHING 0.95   // weight of the past in the smoothed loss
#define SPEED_SMOOTHING 0.95  // and in the tokens per second
#define PLAIN_LINES 100       // about as many lines as a redirected run prints, whatever its number of steps

typedef struct {
    uint64_t first_step, total_steps;
    double tokens_per_step;
    double smoothed_loss, loss_weight;
    double smoothed_seconds, seconds_weight;  // of a step
    uint64_t steps_seen;
    int terminal;
} Progress;

static inline void progress_start(Progress *p, uint64_t first_step, uint64_t total_steps, double tokens_per_step) {
    memset(p, 0, sizeof *p);
    p->first_step = first_step;
    p->total_steps = total_steps;
    p->tokens_per_step = tokens_per_step;
    p->terminal = isatty(STDOUT_FILENO);
}

// Exponential mean that starts unbiased: value / weight.
static inline void smooth(double *sum, double *weight, double value, double decay) {
    *sum = decay * *sum + (1.0 - decay) * value;
    *weight = decay * *weight + (1.0 - decay);
}

// Takes in one finished step. A loss that is not finite does not enter the smoothed one.
static inline void progress_step(Progress *p, double loss, double seconds) {
    if (isfinite(loss)) smooth(&p->smoothed_loss, &p->loss_weight, loss, LOSS_SMOOTHING);
    if (p->steps_seen++ > 0) smooth(&p->smoothed_seconds, &p->seconds_weight, seconds, SPEED_SMOOTHING);
}

static inline double progress_loss(const Progress *p) {
    return p->loss_weight > 0 ? p->smoothed_loss / p->loss_weight : NAN;
}

// Seconds a step takes, NaN after a single step.
static inline double progress_step_seconds(const Progress *p) {
    return p->seconds_weight > 0 ? p->smoothed_seconds / p->seconds_weight : NAN;
}

static inline double progress_tokens_per_s(const Progress *p) { return p->tokens_per_step / progress_step_seconds(p); }

// "21.3k", "1.25M"; "n/a" where the number is not known.
static inline const char *format_count(char *text, double count) {
    if (!isfinite(count)) snprintf(text, 32, "n/a");
    else if (count >= 1e9) snprintf(text, 32, "%.2fB", count * 1e-9);
    else if (count >= 1e6) snprintf(text, 32, "%.2fM", count * 1e-6);
    else if (count >= 1e3) snprintf(text, 32, "%.1fk", count * 1e-3);
    else snprintf(text, 32, "%.0f", count);
    return text;
}

// "1:02:03", "4:05" or "n/a".
static inline const char *format_duration(char *text, double seconds) {
    if (!isfinite(seconds)) {
        snprintf(text, 32, "n/a");
        return text;
    }
    unsigned long s = (unsigned long)(seconds + 0.5);
    if (s >= 3600) snprintf(text, 32, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
    else snprintf(text, 32, "%lu:%02lu", s / 60, s % 60);
    return text;
}

// Columns of the terminal stdout is, asked each time since windows change; 80 where it does not say.
static inline size_t terminal_columns(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

// The line of a step into `line` (bytes); with `columns` it gets a bar, as long as there is room for, and is cut there:
// a live line that wraps could not be overwritten.
static inline void progress_line(const Progress *p, char *line, size_t bytes, size_t columns, uint64_t step,
                                 double loss, double grad_norm, double lr) {
    char speed[32], eta[32], bar[24] = "", count[64], rest[192];
    unsigned long long total = p->total_steps;
    if (isnan(loss)) loss = NAN;  // without the sign it may have: "nan", never "-nan"
    if (isnan(grad_norm)) grad_norm = NAN;
    format_count(speed, progress_tokens_per_s(p));
    format_duration(eta, progress_step_seconds(p) * (double)(p->total_steps - step));
    int used = snprintf(count, sizeof count, "step %*llu/%llu ", snprintf(NULL, 0, "%llu", total),
                        (unsigned long long)step, total);
    used += snprintf(rest, sizeof rest, "loss %.4f (%.4f) norm %.3g lr %.2e  %s tok/s  ETA %s", loss, progress_loss(p),
                     grad_norm, lr, speed, eta);
    int room = columns ? (int)min_size(columns, 1000) - used - 4 : 0, length = room < 20 ? room : 20;
    if (length >= 4) {
        int filled = (int)((double)length * (double)step / (double)max_size(1, p->total_steps));
        bar[0] = '[';
        for (int i = 0; i < length; i++) bar[1 + i] = i < filled ? '=' : (i == filled ? '>' : ' ');
        strcpy(bar + 1 + length, "] ");
    }
    snprintf(line, bytes, "%s%s%s", count, bar, rest);
    if (columns && columns <= bytes && strlen(line) >= columns) line[columns - 1] = 0;
}

// Shows step `step` (1-based count of finished steps): the live line on a terminal; elsewhere every so many steps, and
// the last one, a line of its own. `note` is printed behind it (a skipped update, say) and forces a plain line.
static inline void progress_show(Progress *p, uint64_t step, double loss, double grad_norm, double lr,
                                 const char *note) {
    char line[320];
    uint64_t every = max_size(1, p->total_steps / PLAIN_LINES);
    if (!p->terminal && !note && step % every != 0 && step != p->total_steps && step != p->first_step + 1) return;
    progress_line(p, line, sizeof line, p->terminal ? terminal_columns() : 0, step, loss, grad_norm, lr);
    printf("%s%s", p->terminal ? "\r\033[K" : "", line);
    if (note) printf("  %s", note);
    if (!p->terminal || note || step == p->total_steps) putchar('\n');
    run_context()->live_line = p->terminal && !note && step != p->total_steps;
    fflush(stdout);
}

#endif
