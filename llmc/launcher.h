// launcher.h: which rank of how many this process is, from what its launcher put into the environment: torchrun (and
// scripts/launch.sh), Open MPI's or MPICH's mpirun, Slurm's srun. No library of theirs is needed; a build with MPI
// (HAVE_MPI) asks it instead of its launcher's variables, and ranks on several machines need no MASTER_ADDR then.
//
//     Launch launch = launch_detect();     // launch.ranks is 1 where nothing started several
//     launch_leave();                      // at the end, where all ranks ended well
#ifndef LLMC_LAUNCHER_H
#define LLMC_LAUNCHER_H

#include "utils.h"

#ifdef HAVE_MPI
#define OMPI_SKIP_MPICXX 1  // the C interface alone
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

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

// Where the ranks meet: MASTER_ADDR and MASTER_PORT, else `address` and a port made of `number`. 0: there is no address.
static inline int launch_meet(Launch *launch, const char *address, long long number) {
    const char *chosen = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    if (chosen && *chosen) address = chosen;
    snprintf(launch->address, sizeof launch->address, "%s", address);
    if (port && *port) snprintf(launch->port, sizeof launch->port, "%s", port);
    else snprintf(launch->port, sizeof launch->port, "%lld", 10000 + number % 20000);
    return *address != 0;
}

// The same with what the launcher's variables imply.
static inline void launch_meeting_point(Launch *launch, int slurm, long long local_ranks) {
    const char *list = getenv("SLURM_STEP_NODELIST");
    char first[256] = "";
    long long job = launch_number("SLURM_JOB_ID"), step = launch_number("SLURM_STEP_ID");
    // A launcher's processes on one machine share their parent: runs side by side get ports of their own.
    long long number = slurm ? job * 64 + step : (long long)getppid();
    if (slurm && list) launch_first_host(first, sizeof first, list);
    else if (local_ranks == (long long)launch->ranks) snprintf(first, sizeof first, "127.0.0.1");
    if (!launch_meet(launch, first, number))
        snprintf(launch->problem, sizeof launch->problem,
                 "%s started %zu ranks, but MASTER_ADDR does not say on which host rank 0 is\n"
                 "try: MASTER_ADDR=<the first host> (mpirun -x MASTER_ADDR=..., MASTER_PORT=...)",
                 launch->launcher, launch->ranks);
}

#ifdef HAVE_MPI
// At the end of die(), until the ranks know each other (communicator_start): not every launcher ends the others.
static inline void launch_on_error(int code, const char *text) {
    (void)text;
    MPI_Abort(MPI_COMM_WORLD, code);
}

// Did a launcher start this process that MPI can talk to? Else to start MPI takes time and gives one rank; srun's
// processes have such a one with --mpi=pmix or pmi2 alone, and go by Slurm's variables without.
static inline int launch_is_mpi(const char *name) {
    return (name && strncmp(name, "SLURM", 5) != 0) || getenv("PMIX_RANK") || getenv("PMI_RANK") || getenv("PMI_FD");
}

// Asks MPI for rank, ranks and where rank 0 is, but for what MASTER_ADDR and MASTER_PORT say. `told`: the ranks that the
// launcher's variable `name` speaks of, or 1. 0 where MPI is not asked.
static inline int launch_by_mpi(Launch *launch, const char *name, long long told) {
    int rank = 0, ranks = 1;
    if (!launch_is_mpi(name)) return 0;
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS) die("MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    launch->launcher = "MPI";
    launch->rank = (size_t)rank;
    launch->ranks = (size_t)ranks;
    if (ranks < told)
        snprintf(launch->problem, sizeof launch->problem,
                 "%s says %lld ranks, but this program's MPI sees %d\n"
                 "why: it was built with another MPI than the one that started it\n"
                 "try: that one's mpirun, or a build that goes by the variables (make MPI=0)",
                 name, told, ranks);
    if (ranks > 1) run_context()->on_error = launch_on_error;
    launch_meet(launch, launch->host, (long long)getpid());
    MPI_Bcast(launch->address, (int)sizeof launch->address, MPI_CHAR, 0, MPI_COMM_WORLD);
    MPI_Bcast(launch->port, (int)sizeof launch->port, MPI_CHAR, 0, MPI_COMM_WORLD);
    return 1;
}

static inline void launch_leave(void) {
    int begun = 0, ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (begun && !ended) MPI_Finalize();
}
#else
static inline int launch_by_mpi(Launch *launch, const char *name, long long told) {
    (void)launch, (void)name, (void)told;
    return 0;
}
static inline void launch_leave(void) {}
#endif

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
        if (i > 0 && launch_by_mpi(&launch, table[i].ranks, ranks)) return launch;
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
    if (launch_by_mpi(&launch, NULL, 1) && launch.ranks > 1) return launch;
    if (launch_number("SLURM_NTASKS") > 1 && launch_number("SLURM_STEP_NUM_TASKS") < 0)
        snprintf(launch.problem, sizeof launch.problem,
                 "SLURM_NTASKS says %lld tasks, but this process was started as one\nwhy: only srun starts tasks\n"
                 "try: srun %s ..., or unset SLURM_NTASKS for a run with one rank",
                 launch_number("SLURM_NTASKS"), "./train_gpt");
    return launch;
}

#endif
