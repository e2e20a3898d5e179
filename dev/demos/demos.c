// demos.c: prints the demonstrations of demos.h, all or those named.
#include "dev/demos/demos.h"

// Whether `name` is among the arguments; with none, all are wanted.
static int wanted(int argc, char **argv, const char *name) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return 1;
    return argc < 2;
}

int main(int argc, char **argv) {
    size_t count;
    const DemoEntry *table = demo_table(&count);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) printf("%-12s %s\n", table[i].name, table[i].title);
        return 0;
    }
    for (int a = 1; a < argc; a++) {
        size_t i = 0;
        while (i < count && strcmp(table[i].name, argv[a]) != 0) i++;
        if (i == count) die_usage("there is no demonstration '%s'\ntry: %s --list", argv[a], argv[0]);
    }
    for (size_t i = 0; i < count; i++) {
        if (!wanted(argc, argv, table[i].name)) continue;
        Demo demo;
        memset(&demo, 0, sizeof demo);
        demo.out = stdout;
        printf("%s: %s\n", table[i].name, table[i].title);
        table[i].run(&demo);
        printf("\n");
    }
    return 0;
}
