// stop_signal.h: the first signal asks for an orderly end at the step's border, a second SIGINT ends the program at once.
// A reader of standard output that is gone (| head) is a signal like others, and as it comes with the next line, never a
// second one.
#ifndef LLMC_STOP_SIGNAL_H
#define LLMC_STOP_SIGNAL_H

#include <signal.h>

#include "utils.h"

static inline volatile sig_atomic_t *stop_signal(void) {
    static volatile sig_atomic_t signal_number;
    return &signal_number;
}

static inline void on_signal(int signal_number) {
    if (*stop_signal() && *stop_signal() != SIGPIPE && signal_number == SIGINT) _exit(128 + SIGINT);
    if (!*stop_signal() || signal_number != SIGPIPE) *stop_signal() = signal_number;
}

static inline void install_signals(void) {
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE};
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        sigaction(signals[i], NULL, &before);
        // nohup, or trap '' PIPE: a closed terminal, or nobody who reads, is no reason to end.
        if ((signals[i] == SIGHUP || signals[i] == SIGPIPE) && before.sa_handler == SIG_IGN) continue;
        sigaction(signals[i], &action, NULL);
    }
}

#endif
