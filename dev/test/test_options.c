// The command line: every option parses, refuses and records what its table row says; messages and exit codes.
#include "../../llmc/options.h"
#include "../../llmc/schedule.h"
#include "test.h"

#include <sys/wait.h>

// ----------------------------------------------------------------------------------------------------------------
// A command line in a process of its own, because a wrong one ends it

typedef struct {
    int code;  // exit code, 255 for a crash
    char out[16384], err[4096];
} Outcome;

static void read_all(FILE *file, char *text, size_t bytes) {
    rewind(file);
    text[fread(text, 1, bytes - 1, file)] = 0;
    fclose(file);
}

// Words of `line` are split at blanks; '^' within a word becomes a blank, '~' makes an empty word.
static int split(const char *line, char *storage, char **argv) {
    int argc = 0;
    argv[argc++] = (char *)"train_gpt";
    strcpy(storage, line);
    for (char *word = strtok(storage, " "); word; word = strtok(NULL, " ")) {
        argv[argc++] = word;
        if (strcmp(word, "~") == 0) *word = 0;
        for (char *c = word; *c; c++)
            if (*c == '^') *c = ' ';
    }
    argv[argc] = NULL;
    return argc;
}

static Outcome run_line(const char *line) {
    static Outcome outcome;
    FILE *out = tmpfile(), *err = tmpfile();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char storage[1024], *argv[64];
        Options o;
        dup2(fileno(out), 1);
        dup2(fileno(err), 2);
        options_parse(&o, split(line, storage, argv), argv, 1);
        exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
    read_all(out, outcome.out, sizeof outcome.out);
    read_all(err, outcome.err, sizeof outcome.err);
    return outcome;
}

// `line` is refused with exit code 2, nothing on stdout, and a message that holds `words`.
static void check_refused(const char *line, const char *words) {
    Outcome r = run_line(line);
    CHECK(r.code == 2, "'%s' exits with %d, expected 2: %s", line, r.code, r.err);
    CHECK(strncmp(r.err, "error: ", 7) == 0 && strstr(r.err, words), "'%s' says '%s', expected '%s'", line, r.err,
          words);
    CHECK(r.out[0] == 0, "'%s' writes '%s' to stdout", line, r.out);
}

// In this process: for command lines that are right.
static Options parse(const char *line) {
    static char storage[4][1024];  // texts of the result point into it
    static int turn;
    char *argv[64], *text = storage[turn++ % 4];
    Options o;
    options_parse(&o, split(line, text, argv), argv, 1);
    return o;
}

// ----------------------------------------------------------------------------------------------------------------

TEST(defaults_suit_a_first_run) {
    Options o = parse("");
    CHECK(strcmp(o.train, "data/self_train_*.bin") == 0 && strcmp(o.out, "log") == 0, "train %s, out %s", o.train,
          o.out);
    CHECK(o.layers == 4 && o.heads == 4 && o.channels == 128 && o.vocab == 0, "the default shape is another");
    CHECK(o.batch == 12 && o.seq == 64 && o.total_batch == 768 && o.max_seq == 64, "total %zu", o.total_batch);
    CHECK(o.lr == 1e-3 && o.grad_clip == 1.0 && strcmp(o.schedule, "cosine") == 0 && o.warmup > 0, "lr %g", o.lr);
    for (int i = 0; i < OPTION_COUNT; i++) CHECK(!options_given(&o, i), "--%s counts as given", option_table()[i].name);
}

// The table itself: names follow from fields, no name twice, defaults within their limits, groups in order.
TEST(table_is_consistent) {
    const OptionInfo *table = option_table();
    static const char *const fields[OPTION_COUNT] = {
#define X(group, name, alias, type, field, ...) #field,
        OPTIONS(X)
#undef X
    };
    Options defaults;
    options_defaults(&defaults);
    for (int i = 0; i < OPTION_COUNT; i++) {
        char name[64], scratch[32];
        snprintf(name, sizeof name, "%s", fields[i]);
        for (char *c = name; *c; c++)
            if (*c == '_') *c = '-';
        CHECK(strcmp(name, table[i].name) == 0, "--%s is field %s", table[i].name, fields[i]);
        CHECK(i == 0 || table[i].group >= table[i - 1].group, "--%s stands outside its group", table[i].name);
        CHECK((table[i].type == OPTION_FLAG_TYPE) == !table[i].value, "--%s: value name", table[i].name);
        CHECK(!table[i].alias || !foreign_option(table[i].alias), "-%s is refused and accepted", table[i].alias);
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(table[i].name, table[j].name) != 0, "--%s twice", table[i].name);
            CHECK(!table[i].alias || !table[j].alias || strcmp(table[i].alias, table[j].alias) != 0, "-%s twice",
                  table[i].alias);
        }
        Options again = defaults;
        if (table[i].type != OPTION_FLAG_TYPE)  // dies if the default is outside the limits
            option_set(&again, &table[i], table[i].name, option_text(&defaults, &table[i], scratch));
    }
}

// llm.c's own launch script for the 124M model, its short names and their order, -z 1 aside.
TEST(llmc_script_options) {
    Options o = parse(
        "-i dev/data/fineweb10B/fineweb_train_*.bin -j dev/data/fineweb10B/fineweb_val_*.bin "
        "-o log124M -e d12 -b 64 -t 1024 -d 524288 -r 1 -z 0 -c 0.1 -l 0.0006 -q 0.0 -u 700 -n 5000 "
        "-v 250 -s 20000 -h 1 -y 1 -nk 5 -nm 50000 -sl 7.0 -sg 7 -k linear -m 3 -g 144 -x 18865 -a 0");
    CHECK(strcmp(o.out, "log124M") == 0 && strstr(o.train, "train_*.bin"), "out %s", o.out);
    CHECK(o.layers == 12 && o.heads == 12 && o.channels == 768 && o.max_seq == 1024 && o.vocab == 50257 && !*o.init,
          "-e d12 gives L %zu NH %zu C %zu T %zu V %zu", o.layers, o.heads, o.channels, o.max_seq, o.vocab);
    CHECK(o.batch == 64 && o.seq == 1024 && o.total_batch == 524288 && o.recompute == 1, "batch");
    CHECK(o.weight_decay == 0.1 && o.lr == 0.0006 && o.final_lr_fraction == 0 && o.warmup == 700, "optimizer");
    CHECK(o.checkpoint_every == 5000 && o.val_every == 250 && o.sample_every == 20000 && o.resume == 1, "every");
    CHECK(o.keep == 5 && o.milestone_every == 50000 && o.skip_loss_z == 7 && o.skip_grad_z == 7, "keep");
    CHECK(strcmp(o.schedule, "linear") == 0 && o.val_steps == 3 && o.sample_length == 144 && o.steps == 18865, "rest");
    CHECK(strcmp(o.hellaswag, "data/hellaswag_val.bin") == 0 && !*parse("-h 0").hellaswag, "-h 1: '%s'", o.hellaswag);
    CHECK(o.overfit == 0 && options_given(&o, OPTION_overfit) && !options_given(&o, OPTION_seed), "given");
}

// A plan may be for any number of ranks, a run is for those there are; a step's tokens are those of all ranks.
TEST(ranks_are_the_launchers) {
    check_refused("--ranks 8", "this run has 1");
    CHECK(parse("").ranks == 1 && parse("--ranks 1").ranks == 1, "ranks");
    Options o = parse("--ranks 8 --dry-run -z 1 -b 4 -t 32");
    CHECK(o.ranks == 8 && o.zero == 1 && o.total_batch == 8 * 4 * 32, "%zu tokens", o.total_batch);
    check_refused("--dry-run --ranks 3 --batch 4 --seq 8 --total-batch 128", "x 3 ranks = 96");
}

TEST(requests_that_cannot_be_met_are_refused) {
    check_refused("-z 3", "between 0 and 2");
    check_refused("-h 2", "--hellaswag FILE");
    check_refused("-pn 8", "several ranks");
    check_refused("-w 0", "master weights");
    check_refused("-w", "-w needs a value");
    Options o = parse("-z 0 -h 0 -f 0 -w 1 -pn 1 -b 2");
    CHECK(o.batch == 2, "batch %zu", o.batch);
}

// Every option in its three spellings; a flag in its five.
TEST(every_option_in_every_spelling) {
    for (int i = 0; i < OPTION_COUNT; i++) {
        const OptionInfo *info = &option_table()[i];
        static const char *const values[] = {"wsd", "1", "0.5", NULL};
        const char *value = values[info->type];
        char lines[5][128] = {"", "", "", "", ""}, scratch[32];
        if (i == OPTION_help || i == OPTION_version || i == OPTION_print_policy) continue;
        if (info->choices) value = strrchr(info->choices, '|') + 1;
        if (i == OPTION_model) value = "d6";
        if (i == OPTION_heads) value = "2";
        if (i == OPTION_channels) value = "64";
        if (i == OPTION_seq || i == OPTION_max_seq || i == OPTION_total_batch) value = "768";
        if (value) {
            snprintf(lines[0], 128, "--%s %s", info->name, value);
            snprintf(lines[1], 128, "--%s=%s", info->name, value);
            if (info->alias) snprintf(lines[2], 128, "-%s %s", info->alias, value);
            snprintf(lines[3], 128, "--%s %s --%s=%s", info->name, i == OPTION_schedule ? "cosine" : value, info->name,
                     value);
        } else {
            value = "1";
            snprintf(lines[0], 128, "--%s", info->name);
            snprintf(lines[1], 128, "--%s=1 --lr 1", info->name);
            snprintf(lines[2], 128, "--no-%s --%s 1", info->name, info->name);
            if (info->alias) snprintf(lines[3], 128, "-%s 1 --lr 2", info->alias);
        }
        for (int k = 0; k < 5; k++) {
            if (!lines[k][0]) continue;
            Options o = parse(lines[k]);
            const char *text = option_text(&o, info, scratch);
            CHECK(strcmp(text, value) == 0, "'%s' gives '%s'", lines[k], text);
            CHECK(options_given(&o, i), "'%s' does not count as given", lines[k]);
        }
        if (info->type == OPTION_FLAG_TYPE) {
            char line[128];
            snprintf(line, sizeof line, "--%s --no-%s", info->name, info->name);
            Options o = parse(line);
            CHECK(strcmp(option_text(&o, info, scratch), "0") == 0, "'%s' leaves it on", line);
        }
    }
}

// Every number at both ends of its range, and just beyond; every number followed by a letter.
TEST(every_number_keeps_its_range) {
    for (int i = 0; i < OPTION_COUNT; i++) {
        const OptionInfo *info = &option_table()[i];
        char line[160], name[64], lo[32], hi[32];
        if (info->type != OPTION_COUNT_TYPE && info->type != OPTION_REAL_TYPE) continue;
        snprintf(name, sizeof name, "--%s", info->name);
        Options o;
        options_defaults(&o);
        snprintf(lo, sizeof lo, info->type == OPTION_COUNT_TYPE ? "%.0f" : "%.17g", info->lo);
        snprintf(hi, sizeof hi, info->type == OPTION_COUNT_TYPE ? "%.0f" : "%.17g", info->hi);
        option_set(&o, info, name, lo);
        option_set(&o, info, name, hi);
        if (info->type == OPTION_COUNT_TYPE) {
            snprintf(line, sizeof line, "%s %.0f", name, info->lo - 1);
            check_refused(line, "is not between");
            snprintf(line, sizeof line, "%s %.0f", name, info->hi + 2);
            check_refused(line, "is not between");
            snprintf(line, sizeof line, "%s 99999999999999999999999", name);
            check_refused(line, "is not between");
            snprintf(line, sizeof line, "%s 1.5", name);
            check_refused(line, "is not a whole number");
        } else {
            snprintf(line, sizeof line, "%s -1", name);
            check_refused(line, "is not between");
            snprintf(line, sizeof line, "%s 1e31", name);
            check_refused(line, "is not between");
            snprintf(line, sizeof line, "%s=nan", name);
            check_refused(line, "is not a number");
        }
        snprintf(line, sizeof line, "%s %s4x", name, lo);
        check_refused(line, info->type == OPTION_COUNT_TYPE ? "is not a whole number" : "is not a number");
        snprintf(line, sizeof line, "%s=", name);
        check_refused(line, "''");
    }
}

TEST(numbers_parse_whole) {
    check_refused("-b 4x", "-b (--batch) '4x' is not a whole number");
    check_refused("--batch 0x10", "'0x10'");
    check_refused("--batch +4", "'+4'");
    check_refused("--batch=^4", "' 4'");
    check_refused("--batch 1e2", "'1e2'");
    check_refused("--lr 0x1p-3", "is not a number");
    check_refused("--lr inf", "is not a number");
    check_refused("--lr=^1", "is not a number");
    check_refused("--lr 1e", "is not a number");
    check_refused("--lr 1e999", "is not between");
    check_refused("--lr .", "is not a number");
    CHECK(parse("--lr .5").lr == 0.5 && parse("--lr 5.").lr == 5 && parse("--lr 1E-4").lr == 1e-4, "plain reals");
    CHECK(parse("--batch 007").batch == 7, "leading zeros");
    CHECK(parse("--seed 9007199254740992").seed == 9007199254740992u, "2^53");
}

TEST(wrong_options_get_the_nearest) {
    check_refused("--bacth 4", "try: --batch ");
    check_refused("--bat 4", "try: --batch ");
    check_refused("-batch 4", "try: --batch ");
    check_refused("--weigth-decay 1", "try: --weight-decay ");
    check_refused("--learning-rate 1", "there is no option --learning-rate");
    check_refused("--no-overfitt", "try: --no-overfit ");
    check_refused("--no-lr", "there is no option --no-lr");
    check_refused("--sample^seed 1 --sample-sed=1", "there is no option --sample seed");
    check_refused("--stpes=3", "there is no option --stpes\n  try: --steps ");
    check_refused("--zzzzzzzzzzzzzzz", "try: --help");
    check_refused("--", "there is no option --");
    check_refused("-", "'-' is not an option");
    check_refused("--schedule cosin", "is not one of cosine|linear|constant|wsd\n  try: cosine");
    check_refused("--model gpt2-smal", "try: --model gpt2");
    check_refused("--model d13", "try: --model d12");
    // A name longer than any buffer must not become a fault of its own.
    char line[900];
    memset(line, 'a', sizeof line);
    memcpy(line, "--", 2);
    line[899] = 0;
    check_refused(line, "there is no option --aaaa");
    memcpy(line, "--schedule=", 11);
    check_refused(line, "is not one of");
}

TEST(values_that_are_missing_or_too_many) {
    check_refused("--batch", "--batch needs a value: B");
    check_refused("-b", "-b (--batch) needs a value: B");
    check_refused("--out --batch 4", "--out needs a value (FOLDER), but --batch follows");
    check_refused("--out -b 4", "but -b follows");
    check_refused("--no-overfit=1", "takes no value");
    check_refused("--overfit=2", "is neither 0 nor 1");
    check_refused("--overfit 2", "'2' is not an option");
    check_refused("--train a.bin b.bin", "quotes");
    // What only looks like an option is a value.
    CHECK(strcmp(parse("--prompt --what").prompt, "--what") == 0, "a prompt with dashes");
    CHECK(strcmp(parse("--prompt -^item").prompt, "- item") == 0, "a prompt with a dash");
    CHECK(strcmp(parse("--prompt=--batch").prompt, "--batch") == 0, "a prompt that is an option's name");
    CHECK(strcmp(parse("--prompt=a=b").prompt, "a=b") == 0, "a prompt with an equals sign");
    CHECK(strcmp(parse("--val ~").val, "") == 0, "an empty text");
}

TEST(last_of_several_wins) {
    Options o = parse("--batch 2 -b 3 --batch=5 --resume -y 0 --lr 1 --lr 2");
    CHECK(o.batch == 5 && o.resume == 0 && o.lr == 2, "batch %zu resume %d lr %g", o.batch, o.resume, o.lr);
}

TEST(model_sets_what_is_not_given) {
    Options o = parse("--model gpt2-xl --heads 10 --seq 128");
    CHECK(o.layers == 48 && o.heads == 10 && o.channels == 1600 && o.max_seq == 1024, "gpt2-xl with 10 heads");
    o = parse("--layers 3 --model gpt3:125M");
    CHECK(o.layers == 3 && o.channels == 768 && o.max_seq == 2048 && o.vocab == 0, "order does not matter");
    o = parse("--init some/folder");
    CHECK(o.layers == 4 && strcmp(o.init, "some/folder") == 0, "a path stays a path");
    CHECK(parse("-e d12 --vocab 300").vocab == 300, "a given vocabulary stays");
    check_refused("-e d12 --model d24", "two shapes");
}

TEST(options_that_do_not_go_together) {
    check_refused("--heads 3", "--heads 3 does not divide --channels 128");
    check_refused("--seq 100 --max-seq 50", "--seq 100 is longer than the 50 positions");
    check_refused("--model gpt2 --seq 2048", "longer than the 1024 positions");
    check_refused("--total-batch 1000", "try: --total-batch 768");
    check_refused("--total-batch 100", "try: --total-batch 768");
    check_refused("--total-batch 1600 --batch 4", "try: --total-batch 1536");
    check_refused("--steps 10 --epochs 2", "only one");
    Options o = parse("--total-batch 7680 --steps 3");
    CHECK(o.total_batch == 7680 && o.steps == 3, "accumulation");
}

// --help lists every option with its default, is sorted into the groups, and goes to stdout with exit code 0.
TEST(help_and_version) {
    static const char *const lines[] = {"--help", "-h", "--help --nonsense", "--batch 3 --help", "-h --batch 4"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        Outcome r = run_line(lines[i]);
        CHECK(r.code == 0 && !r.err[0] && strncmp(r.out, "Usage:", 6) == 0, "'%s': code %d, '%s'", lines[i], r.code,
              r.err);
    }
    Outcome r = run_line("--help");
    Options defaults;
    options_defaults(&defaults);
    int next = 0;  // the option whose line comes next; lines without an option are titles
    for (const char *line = r.out; *line && next < OPTION_COUNT; line += strcspn(line, "\n") + 1) {
        const OptionInfo *info = &option_table()[next];
        char text[160], scratch[32];
        size_t columns = strcspn(line, "\n");
        if (columns < 10 || strncmp(line + 7, "--", 2) != 0) continue;
        snprintf(text, sizeof text, "--%s ", info->name);
        CHECK(strncmp(line + 7, text, strlen(text)) == 0, "--%s has no line or stands elsewhere", info->name);
        snprintf(text, sizeof text, " [%s]\n", option_text(&defaults, info, scratch));
        if (info->type != OPTION_FLAG_TYPE && strlen(text) > 4)
            CHECK(strncmp(line + columns + 1 - strlen(text), text, strlen(text)) == 0, "--%s: default%s", info->name,
                  text);
        next++;
    }
    CHECK(next == OPTION_COUNT, "--help ends before --%s",
          option_table()[min_size((size_t)next, OPTION_COUNT - 1)].name);
    for (const char *line = r.out; *line; line += strcspn(line, "\n") + 1)
        CHECK(strcspn(line, "\n") <= 110, "a line of --help has %zu columns", strcspn(line, "\n"));
    r = run_line("--version");
    CHECK(r.code == 0 && strncmp(r.out, "train_gpt ", 10) == 0 && strchr(r.out, '\n') == strrchr(r.out, '\n'), "%s",
          r.out);
}

// ----------------------------------------------------------------------------------------------------------------
// Recording and comparing

static size_t diff(const char *recorded, const Options *now, char *text, size_t bytes) {
    FILE *file = tmpfile();
    size_t changing = options_diff(recorded, now, file);
    read_all(file, text, bytes);
    return changing;
}

// Recorded and compared with itself: no difference, whatever the texts hold. Then each option changed alone is
// reported alone, and counted if its row says that it changes what is trained.
TEST(every_difference_is_found) {
    Options before = parse("--lr 0.1 --eps 3.3e-9 --seed 9007199254740991 --prompt a\"b\\c\n\x01\xc3\xa9");
    char *json = options_to_json(&before), text[8192];
    CHECK(diff(json, &before, text, sizeof text) == 0 && !text[0], "differs from itself: %s", text);
    for (int i = 0; i < OPTION_COUNT; i++) {
        const OptionInfo *info = &option_table()[i];
        Options now = before;
        char *field = (char *)&now + info->offset, expected[64];
        switch (info->type) {
            case OPTION_TEXT_TYPE: *(const char **)field = "other"; break;
            case OPTION_COUNT_TYPE: ++*(size_t *)field; break;
            case OPTION_REAL_TYPE: *(double *)field = nextafter(*(double *)field, 2); break;
            case OPTION_FLAG_TYPE: *(int *)field ^= 1; break;
        }
        size_t changing = diff(json, &now, text, sizeof text);
        if (info->effect == OPTION_THIS_CALL) {
            CHECK(changing == 0 && !text[0], "--%s is compared: %s", info->name, text);
            continue;
        }
        snprintf(expected, sizeof expected, "  --%s ", info->name);
        CHECK(strncmp(text, expected, strlen(expected)) == 0 && strstr(text, " -> ") && text[strlen(text) - 1] == '\n',
              "--%s: '%s'", info->name, text);
        CHECK(changing == (info->effect == OPTION_WEIGHTS), "--%s counts %zu: %s", info->name, changing, text);
    }
    free(json);
}

TEST(recorded_options_that_are_damaged_or_old) {
    Options now = parse("");
    char text[8192];
    CHECK(diff("", &now, text, sizeof text) == 1 && strstr(text, "cannot be read"), "empty: %s", text);
    CHECK(diff("[1]", &now, text, sizeof text) == 1, "an array: %s", text);
    CHECK(diff("{\"lr\":0.001", &now, text, sizeof text) == 1, "cut short: %s", text);
    CHECK(diff("{}", &now, text, sizeof text) > 10 && strstr(text, "--lr (not recorded) -> 0.001"), "{}: %s", text);
    char *json = options_to_json(&now), *batch = strstr(json, "\"batch\":12");
    memcpy(batch, "\"batch\":-2", 10);
    CHECK(diff(json, &now, text, sizeof text) == 1 && strstr(text, "--batch (not recorded) -> 12"), "-2: %s", text);
    free(json);
}

TEST(schedules_are_those_the_schedule_knows) {
    CHECK(strcmp(option_table()[OPTION_schedule].choices, SCHEDULE_NAMES) == 0, "%s",
          option_table()[OPTION_schedule].choices);
}

// Against the textbook cases: a swap of neighbours is one edit, as is an insertion, deletion or replacement.
TEST(edit_distances) {
    CHECK(edit_distance("", "") == 0 && edit_distance("", "abc") == 3 && edit_distance("abc", "") == 3, "empty");
    CHECK(edit_distance("kitten", "sitting") == 3, "kitten, sitting: %zu", edit_distance("kitten", "sitting"));
    CHECK(edit_distance("bacth", "batch") == 1, "bacth, batch: %zu", edit_distance("bacth", "batch"));
    CHECK(edit_distance("ca", "abc") == 3, "ca, abc: %zu", edit_distance("ca", "abc"));
    CHECK(edit_distance("flaw", "lawn") == 2, "flaw, lawn: %zu", edit_distance("flaw", "lawn"));
}

int main(void) {
    RUN(defaults_suit_a_first_run);
    RUN(table_is_consistent);
    RUN(llmc_script_options);
    RUN(requests_that_cannot_be_met_are_refused);
    RUN(ranks_are_the_launchers);
    RUN(every_option_in_every_spelling);
    RUN(every_number_keeps_its_range);
    RUN(numbers_parse_whole);
    RUN(wrong_options_get_the_nearest);
    RUN(values_that_are_missing_or_too_many);
    RUN(last_of_several_wins);
    RUN(model_sets_what_is_not_given);
    RUN(options_that_do_not_go_together);
    RUN(help_and_version);
    RUN(every_difference_is_found);
    RUN(recorded_options_that_are_damaged_or_old);
    RUN(schedules_are_those_the_schedule_knows);
    RUN(edit_distances);
    return test_summary();
}
