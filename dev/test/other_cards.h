// other_cards.h: a test program once more as other cards, for which cuBLASLt has other products. On the emulator only.
#ifndef OTHER_CARDS_H
#define OTHER_CARDS_H

#include <stdlib.h>

#include "test.h"

// `program argument` for each compute capability beside the emulator's own, 90; what it prints is shown where it fails.
static inline void check_other_cards(const char *program, const char *argument) {
    for (const char *cc : {"80", "89", "100", "120"}) {
        char command[4096];
        snprintf(command, sizeof command, "text=$(EMU_CC=%s '%s' %s) || { echo \"$text\"; exit 1; }", cc, program, argument);
        fflush(stdout);
        CHECK(system(command) == 0, "compute capability %s", cc);
    }
}

#endif
