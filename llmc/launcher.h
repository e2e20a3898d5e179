// launcher.h: which rank of how many this process is, from what its launcher put into the environment: torchrun (and
// scripts/launch.sh), Open MPI's or MPICH's mpirun, Slurm's srun. No library of theirs is needed.
//
//     Launch launch = launch_detect();     // launch.ranks is 1 where nothing started several
#ifndef LLMC_LAUNCHER_H
#define LLMC_LAUNCHER_H

#include "utils.h"

typedef struct {
    size_t rank, ranks;
    const char *launcher;            // its name, for messages; NULL: none
    char host[64];                   // this machine's name
    char address[256], port[16];     // where rank 0 listens
    char problem[512];               // why several ranks cannot start; empty: they can
} Launch;

typedef struct {
    const char *name, *rank, *ranks, *local_ranks;
} LaunchVariables;

// The value of a variable that holds a whole number; -1 where it is not set, or no number.
static inline long long launch_number(const char *name) {
    const char *text = name ? getenv(name) : NULL;
    char *end;
    if (!text || !*text) return -1;
    long long value = strtoll(text, &end, 10);
    return *end || value < 0 ? -1 : value;
}

// The first host of Slurm's list: "node[03-07,9],other" begins with node03.
static inline void launch_first_host(char *host, size_t bytes, const char *list) {
    size_t prefix = strcspn(list, "[,");
    const char *number = list[prefix] == '[' ? list + prefix + 1 : "";
    snprintf(host, bytes, "%.*s%.*s", (int)prefix, list, (int)strcspn(number, "-,]"), number);
}

// Where the ranks meet: MASTER_ADDR and MASTER_PORT, else what the launcher implies.
static inline void launch_meeting_point(Launch *launch, int slurm, long long local_ranks) {
    const char *address = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT"), *list = getenv("SLURM_STEP_NODELIST");
    long long job = launch_number("SLURM_JOB_ID"), step = launch_number("SLURM_STEP_ID");
    // A launcher's processes on one machine share their parent: runs side by side get ports of their own.
    long long number = slurm ? job * 64 + step : (long long)getppid();
    if (address && *address) snprintf(launch->address, sizeof launch->address, "%s", address);
    else if (slurm && list) launch_first_host(launch->address, sizeof launch->address, list);
    else if (local_ranks == (long long)launch->ranks) snprintf(launch->address, sizeof launch->address, "127.0.0.1");
    else
        snprintf(launch->problem, sizeof launch->problem,
                 "%s started %zu ranks, but MASTER_ADDR does not say on which host rank 0 is\n"
                 "try: MASTER_ADDR=<the first host> (mpirun -x MASTER_ADDR=..., MASTER_PORT=...)",
                 launch->launcher, launch->ranks);
    if (port && *port) snprintf(launch->port, sizeof launch->port, "%s", port);
    else snprintf(launch->port, sizeof launch->port, "%lld", 10000 + number % 20000);
}

static inline Launch launch_detect(void) {
    static const LaunchVariables table[] = {
        {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
        {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
        {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL},
    };
    Launch launch;
    memset(&launch, 0, sizeof launch);
    launch.ranks = 1;
    if (gethostname(launch.host, sizeof launch.host - 1) != 0) snprintf(launch.host, sizeof launch.host, "unknown");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        long long ranks = launch_number(table[i].ranks), rank = launch_number(table[i].rank);
        if (ranks < 2) continue;
        launch.launcher = table[i].name;
        if (rank < 0 || rank >= ranks) {
            const char *text = getenv(table[i].rank);
            snprintf(launch.problem, sizeof launch.problem,
                     "%s says %lld ranks, but %s is %s\nwhy: this process cannot tell which one it is\n"
                     "try: the launcher's own variables, or unset %s for a run with one rank",
                     table[i].ranks, ranks, table[i].rank, text ? text : "not set", table[i].ranks);
            return launch;
        }
        launch.rank = (size_t)rank;
        launch.ranks = (size_t)ranks;
        launch_meeting_point(&launch, i == 3, launch_number(table[i].local_ranks));
        return launch;
    }
    if (launch_number("SLURM_NTASKS") > 1 && launch_number("SLURM_STEP_NUM_TASKS") < 0)
        snprintf(launch.problem, sizeof launch.problem,
                 "SLURM_NTASKS says %lld tasks, but this process was started as one\nwhy: only srun starts tasks\n"
                 "try: srun %s ..., or unset SLURM_NTASKS for a run with one rank",
                 launch_number("SLURM_NTASKS"), "./train_gpt");
    return launch;
}

#endif
