// dies.h: checks that a call ends the program, with which exit code and which words.
//
//     CHECK_DIES(1, "no permission", dataloader_open(&dl, path, ...));
//
// The call runs in a child process whose stderr is read; the text stays in `died_text`.
#ifndef DEV_TEST_DIES_H
#define DEV_TEST_DIES_H

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static char died_text[8192];  // what the last child said

// There in a program built with AddressSanitizer: what a dying child leaves unfreed is no leak.
#ifdef __cplusplus
extern "C"
#endif
__attribute__((weak)) void __lsan_disable(void);

// In the child: returns 0 with stderr redirected. In the parent: the child's exit code + 1, or 128 + signal + 1.
static inline int test_fork(void) {
    int ends[2], status;
    size_t length = 0;
    fflush(stdout);
    if (pipe(ends) != 0) return 1000;
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        dup2(ends[1], 2);
        close(ends[1]);
        if (__lsan_disable) __lsan_disable();
        return 0;
    }
    close(ends[1]);
    for (ssize_t got; length < sizeof died_text - 1; length += (size_t)got)
        if ((got = read(ends[0], died_text + length, sizeof died_text - 1 - length)) <= 0) break;
    died_text[length] = 0;
    for (char rest[512]; read(ends[0], rest, sizeof rest) > 0;) continue;  // else the child dies of a broken pipe
    close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) != child) return 1000;
    return 1 + (WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

// Fails unless `call` exits with `code` and its message has `words`. Leaving without dying counts as exit code 99.
#define CHECK_DIES(code, words, call)                                                                      \
    do {                                                                                                   \
        int died_ = test_fork();                                                                           \
        if (died_ == 0) {                                                                                  \
            call;                                                                                          \
            _exit(99);                                                                                     \
        }                                                                                                  \
        CHECK(died_ - 1 == (code), "%s: exit code %d, not %d: %s", #call, died_ - 1, (code), died_text);   \
        CHECK(strstr(died_text, (words)) != NULL, "%s: no \"%s\" in: %s", #call, (words), died_text);      \
    } while (0)

#endif
