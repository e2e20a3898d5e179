// communicator.h: what the ranks of a run say to each other beside their numbers: who is there, where each one stands,
// and that the run ends. Numbers go over NCCL (communicator.cuh).
//
// Every rank keeps a TCP connection to rank 0 and a thread that serves it. A rank that dies closes its connection, so
// all others learn of it at once and end: nobody waits for ever in a collective, whatever state the GPU is in. Each
// second a rank reports its step and what it is doing; rank 0 ends the run, with that table, when one of them has not
// moved for --timeout seconds.
//
//     communicator_start(&launch, timeout, fingerprint, &hello, token, bytes);  // all ranks: meet, check, share the token
//     communicator_mark(step, "gradient norm");                         // before anything that may wait
//     communicator_stop();                                              // the run has ended well
#ifndef LLMC_COMMUNICATOR_H
#define LLMC_COMMUNICATOR_H

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "launcher.h"

#define COMMUNICATOR_TOKEN_BYTES 256
#define COMMUNICATOR_MEET_SECONDS 120.0  // in which all ranks must have come
#define COMMUNICATOR_TROUBLE_SECONDS 4.0  // that a broken collective waits for a better explanation

// What a rank says of itself when it comes. Ranks of one host that see the same devices share them out in order.
typedef struct {
    char host[64], visible[128];  // visible: CUDA_VISIBLE_DEVICES
    uint64_t magic, rank, ranks, devices;
    uint64_t fingerprint;  // of everything that must be the same on all ranks
} CommunicatorHello;

// Rank 0's answer.
typedef struct {
    uint64_t magic, device;
    unsigned char token[COMMUNICATOR_TOKEN_BYTES];
} CommunicatorWelcome;

enum { COMMUNICATOR_STATUS = 1, COMMUNICATOR_END, COMMUNICATOR_BYE };
typedef struct {
    uint64_t type, step, moves;
    char text[256];  // what the rank is doing; of END: why
} CommunicatorMessage;

// What rank 0 knows of a rank.
typedef struct {
    int socket;  // -1: it has said goodbye
    char host[64];
    uint64_t step, moves;
    double moved_at;  // when `moves` was seen to change
    char what[64];
} CommunicatorPeer;

typedef struct {
    Launch launch;
    double timeout;
    CommunicatorPeer *peers;  // rank 0: all ranks; others: rank 0 alone
    pthread_t thread;
    pthread_mutex_t sending;
    // Written by the program, read by the thread:
    uint64_t step, moves;
    const char *what;
    int leaving, left;  // this rank has ended well; and so have the others
    int ending;         // this rank ends the run: others go because of it
    const char *(*trouble)(void);  // whether the network broke under a collective, which then never ends: NULL, or how
    double trouble_at;             // when the thread first heard of it; 0: it did not
} Communicator;

static inline Communicator *communicator(void) {
    static Communicator one;
    return &one;
}

#define COMMUNICATOR_MAGIC 0x6c6c6d6372616e6bull  // says that whoever connects is a rank, and of this version

// Where the run stands, for the watchdog: `what` is a literal. Any number of calls may mean progress.
static inline void communicator_mark(uint64_t step, const char *what) {
    Communicator *c = communicator();
    __atomic_store_n(&c->step, step, __ATOMIC_RELAXED);
    __atomic_store_n(&c->what, what, __ATOMIC_RELAXED);
    __atomic_fetch_add(&c->moves, 1, __ATOMIC_RELAXED);
}

// Something goes on in the same place.
static inline void communicator_moved(void) { __atomic_fetch_add(&communicator()->moves, 1, __ATOMIC_RELAXED); }

// From now on the watchdog looks for trouble, too; NULL: no more.
static inline void communicator_watch(const char *(*trouble)(void)) {
    __atomic_store_n(&communicator()->trouble, trouble, __ATOMIC_RELEASE);
}

// ----------------------------------------------------------------------------------------------------------------
// Sockets

static inline int socket_send(int fd, const void *data, size_t bytes) {
    const char *at = (const char *)data;
    while (bytes) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

static inline int socket_receive(int fd, void *data, size_t bytes) {
    char *at = (char *)data;
    while (bytes) {
        ssize_t n = recv(fd, at, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

// A rank that vanished together with its machine is noticed by the system, too.
static inline void socket_set_up(int fd, double timeout) {
    int on = 1;
    struct timeval limit = {(time_t)timeout, 0};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// ----------------------------------------------------------------------------------------------------------------
// The end

// To every rank this one is connected with. Never waits for long: the run ends whoever listens.
static inline void communicator_tell(uint64_t type, const char *text) {
    Communicator *c = communicator();
    CommunicatorMessage message;
    memset(&message, 0, sizeof message);
    message.type = type;
    message.step = __atomic_load_n(&c->step, __ATOMIC_RELAXED);
    message.moves = __atomic_load_n(&c->moves, __ATOMIC_RELAXED);
    snprintf(message.text, sizeof message.text, "%s", text);
    pthread_mutex_lock(&c->sending);
    for (size_t i = 0; i < (c->launch.rank == 0 ? c->launch.ranks : 1); i++)
        if (c->peers[i].socket >= 0) socket_send(c->peers[i].socket, &message, sizeof message);
    pthread_mutex_unlock(&c->sending);
}

// At the end of die(): the other ranks learn why, and this one goes without waiting for its GPU.
static inline void communicator_on_error(int code, const char *text) {
    __atomic_store_n(&communicator()->ending, 1, __ATOMIC_RELEASE);
    communicator_tell(COMMUNICATOR_END, text);
    fflush(NULL);
    _exit(code);
}

static inline void communicator_end_all(const char *why) __attribute__((noreturn));
static inline void communicator_end_all(const char *why) {
    communicator_tell(COMMUNICATOR_END, why);
    fflush(NULL);
    _exit(1);
}

// Rank 0: rank `rank` is gone, or has said why it ends.
static inline void communicator_lost(size_t rank, const char *why) {
    Communicator *c = communicator();
    size_t line = strcspn(why, "\n");
    while (__atomic_load_n(&c->ending, __ATOMIC_ACQUIRE)) pause();  // _exit() is near, in another thread
    end_live_line();
    fprintf(stderr, "error: rank %zu of %zu on %s ended the run at step %llu (%s): %.*s\n", rank, c->launch.ranks,
            c->peers[rank].host, (unsigned long long)c->peers[rank].step, c->peers[rank].what, (int)line, why);
    communicator_end_all("another rank ended the run");
}

// Rank 0: no rank has moved for too long. While one moves, the others may well wait for it; where one hangs, soon all do.
// Where each of them stands says who waits for whom: the one that stopped first is named.
static inline void communicator_stuck(double now) {
    Communicator *c = communicator();
    size_t first = 0;
    for (size_t i = 1; i < c->launch.ranks; i++)
        if (c->peers[i].socket >= 0 && c->peers[i].moved_at < c->peers[first].moved_at) first = i;
    end_live_line();
    fprintf(stderr, "error: no rank has moved for %.0f s (--timeout); rank %zu of %zu on %s stopped first\n", c->timeout,
            first, c->launch.ranks, c->peers[first].host);
    for (size_t i = 0; i < c->launch.ranks; i++)
        fprintf(stderr, "  rank %zu on %s: step %llu, %s, for %.1f s\n", i, c->peers[i].host,
                (unsigned long long)c->peers[i].step, c->peers[i].what, now - c->peers[i].moved_at);
    communicator_end_all("a rank does not move");
}

// A collective that lost its network ends no more, and the program waits for it. Where a rank has died the others see
// that, too, but rank 0 knows better what happened and has some seconds to say so.
static inline void communicator_look_for_trouble(Communicator *c) {
    const char *(*look)(void) = __atomic_load_n(&c->trouble, __ATOMIC_ACQUIRE), *what = look ? look() : NULL;
    char text[256];
    if (!what) return;
    if (c->trouble_at == 0) c->trouble_at = now_seconds();
    if (now_seconds() - c->trouble_at < COMMUNICATOR_TROUBLE_SECONDS) return;
    snprintf(text, sizeof text, "its collectives broke: %s", what);
    if (c->launch.rank == 0) communicator_lost(0, text);
    communicator_end_all(text);
}

// ----------------------------------------------------------------------------------------------------------------
// The thread

static inline void communicator_note(CommunicatorPeer *peer, uint64_t step, uint64_t moves, const char *what) {
    if (moves != peer->moves) peer->moved_at = now_seconds();
    peer->moves = moves;
    peer->step = step;
    snprintf(peer->what, sizeof peer->what, "%.63s", what);
}

// Rank 0's: takes every message there is, then looks whether all still move.
static inline void communicator_serve(Communicator *c, struct pollfd *fds) {
    size_t here = 0;
    for (size_t i = 0; i < c->launch.ranks; i++) {
        fds[i].fd = c->peers[i].socket;  // poll() passes over -1
        fds[i].events = POLLIN;
        here += i > 0 && c->peers[i].socket >= 0;
    }
    if (!here) __atomic_store_n(&c->left, 1, __ATOMIC_RELEASE);
    poll(fds, c->launch.ranks, 200);
    for (size_t i = 1; i < c->launch.ranks; i++) {
        CommunicatorMessage message;
        if (fds[i].fd < 0 || !fds[i].revents) continue;
        if (!socket_receive(fds[i].fd, &message, sizeof message)) communicator_lost(i, "it died without a word");
        message.text[sizeof message.text - 1] = 0;
        if (message.type == COMMUNICATOR_END) communicator_lost(i, message.text);
        communicator_note(&c->peers[i], message.step, message.moves, message.text);
        if (message.type != COMMUNICATOR_BYE) continue;
        pthread_mutex_lock(&c->sending);
        CommunicatorMessage answer = message;
        socket_send(c->peers[i].socket, &answer, sizeof answer);
        c->peers[i].socket = -1;  // left open, so that its end is not taken for this rank's
        pthread_mutex_unlock(&c->sending);
    }
    communicator_note(&c->peers[0], __atomic_load_n(&c->step, __ATOMIC_RELAXED),
                      __atomic_load_n(&c->moves, __ATOMIC_RELAXED), __atomic_load_n(&c->what, __ATOMIC_RELAXED));
    double newest = 0;
    for (size_t i = 0; i < c->launch.ranks; i++)
        if (c->peers[i].moved_at > newest) newest = c->peers[i].moved_at;
    if (c->timeout > 0 && now_seconds() - newest > c->timeout) communicator_stuck(now_seconds());
}

static inline void *communicator_thread(void *unused) {
    Communicator *c = communicator();
    size_t peers = c->launch.rank == 0 ? c->launch.ranks : 1;
    struct pollfd *fds = (struct pollfd *)checked_calloc(peers, sizeof *fds, "connections to ranks");
    double told_at = 0;
    while (c->launch.rank == 0) {
        communicator_serve(c, fds);
        communicator_look_for_trouble(c);
        if (__atomic_load_n(&c->left, __ATOMIC_ACQUIRE) && __atomic_load_n(&c->leaving, __ATOMIC_ACQUIRE)) break;
    }
    while (c->launch.rank != 0) {
        CommunicatorMessage message;
        fds[0].fd = c->peers[0].socket;
        fds[0].events = POLLIN;
        if (now_seconds() - told_at > 0.9) {
            communicator_tell(COMMUNICATOR_STATUS, __atomic_load_n(&c->what, __ATOMIC_RELAXED));
            told_at = now_seconds();
        }
        communicator_look_for_trouble(c);
        if (poll(fds, 1, 200) <= 0) continue;
        int heard = socket_receive(fds[0].fd, &message, sizeof message);
        if (heard && message.type == COMMUNICATOR_BYE) break;
        if (!heard && c->launch.rank == 1)
            fprintf(stderr, "error: rank 0 of %zu on %s died without a word\n", c->launch.ranks, c->launch.address);
        fflush(NULL);
        _exit(1);
    }
    __atomic_store_n(&c->left, 1, __ATOMIC_RELEASE);
    free(fds);
    return unused;
}

// ----------------------------------------------------------------------------------------------------------------
// The beginning

static inline int communicator_listen(const Launch *launch) {
    struct sockaddr_in6 any;
    int on = 1, off = 0, fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in any4;
    const struct sockaddr *address = (const struct sockaddr *)&any;
    socklen_t bytes = sizeof any;
    memset(&any, 0, sizeof any);
    memset(&any4, 0, sizeof any4);
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    any.sin6_port = any4.sin_port = htons((uint16_t)atoi(launch->port));
    any4.sin_family = AF_INET;
    if (fd < 0) {  // a system without IPv6
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        address = (const struct sockaddr *)&any4;
        bytes = sizeof any4;
    } else {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, address, bytes) != 0 || listen(fd, 4096) != 0)
        die("rank 0 cannot listen on port %s of %s: %s\ntry: another MASTER_PORT", launch->port, launch->host,
            strerror(errno));
    return fd;
}

// A connection to rank 0, which may not be there yet.
static inline int communicator_connect(const Launch *launch) {
    struct addrinfo hints, *found = NULL;
    double start = now_seconds();
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    for (;;) {
        const char *why = "";
        int code = getaddrinfo(launch->address, launch->port, &hints, &found);
        if (code != 0) why = gai_strerror(code);
        for (struct addrinfo *a = code == 0 ? found : NULL; a; a = a->ai_next) {
            int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
            if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
                freeaddrinfo(found);
                return fd;
            }
            why = strerror(errno);
            if (fd >= 0) close(fd);
        }
        if (code == 0) freeaddrinfo(found);
        if (now_seconds() - start > COMMUNICATOR_MEET_SECONDS)
            die("rank %zu on %s cannot reach rank 0 at %s:%s: %s\ntry: MASTER_ADDR and MASTER_PORT of rank 0's host",
                launch->rank, launch->host, launch->address, launch->port, why);
        usleep(50000);
    }
}

// Shares out each host's devices, in the order of ranks; ends the run where there are too few.
static inline void communicator_devices(const CommunicatorHello *hellos, size_t ranks, CommunicatorWelcome *welcomes) {
    for (size_t i = 0; i < ranks; i++) {
        size_t before = 0, on_host = 0;
        for (size_t k = 0; k < ranks; k++) {
            if (strcmp(hellos[k].host, hellos[i].host) != 0 || strcmp(hellos[k].visible, hellos[i].visible) != 0) continue;
            before += k < i;
            on_host++;
        }
        if (on_host > hellos[i].devices)
            die_usage("host %s: %zu ranks, %llu device%s\ntry: as many ranks as devices (nvidia-smi, "
                      "CUDA_VISIBLE_DEVICES)",
                      hellos[i].host, on_host, (unsigned long long)hellos[i].devices, hellos[i].devices == 1 ? "" : "s");
        welcomes[i].device = before;
    }
}

static inline void communicator_check_hello(const Communicator *c, const CommunicatorHello *hello,
                                            const CommunicatorHello *own) {
    if (hello->ranks != own->ranks)
        die_usage("rank %llu on %s was told of %llu ranks, rank 0 of %llu", (unsigned long long)hello->rank, hello->host,
                  (unsigned long long)hello->ranks, (unsigned long long)own->ranks);
    if (hello->rank == 0 || hello->rank >= hello->ranks || c->peers[hello->rank].socket >= 0)
        die_usage("two ranks are number %llu, one of them on %s\nwhy: the launcher's variables do not fit together, or "
                  "two runs use port %s",
                  (unsigned long long)hello->rank, hello->host, c->launch.port);
    if (hello->fingerprint != own->fingerprint)
        die_usage("rank %llu on %s was started with other options than rank 0, or is another build",
                  (unsigned long long)hello->rank, hello->host);
}

// Rank 0: waits for all others. Whoever connects and is no rank is sent away.
static inline void communicator_gather_ranks(Communicator *c, const CommunicatorHello *own,
                                             CommunicatorWelcome *welcomes, const void *token, size_t token_bytes) {
    size_t ranks = c->launch.ranks, here = 1;
    CommunicatorHello *hellos = (CommunicatorHello *)checked_calloc(ranks, sizeof *hellos, "ranks");
    int listener = communicator_listen(&c->launch);
    double start = now_seconds();
    hellos[0] = *own;
    while (here < ranks) {
        struct pollfd ready = {listener, POLLIN, 0};
        CommunicatorHello hello;
        if (now_seconds() - start > COMMUNICATOR_MEET_SECONDS) {
            size_t missing = 1;
            while (c->peers[missing].socket >= 0) missing++;
            die("%zu of %zu ranks have come within %.0f s; rank %zu is the first that has not\n"
                "try: the launcher's log; a firewall that lets port %s of %s through",
                here, ranks, COMMUNICATOR_MEET_SECONDS, missing, c->launch.port, c->launch.host);
        }
        if (poll(&ready, 1, 500) <= 0) continue;
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) continue;
        socket_set_up(fd, 5);
        if (!socket_receive(fd, &hello, sizeof hello) || hello.magic != COMMUNICATOR_MAGIC) {
            close(fd);
            continue;
        }
        hello.host[sizeof hello.host - 1] = hello.visible[sizeof hello.visible - 1] = 0;
        communicator_check_hello(c, &hello, own);
        hellos[hello.rank] = hello;
        c->peers[hello.rank].socket = fd;
        memcpy(c->peers[hello.rank].host, hello.host, sizeof hello.host);
        here++;
    }
    close(listener);
    communicator_devices(hellos, ranks, welcomes);
    for (size_t i = 0; i < ranks; i++) {
        welcomes[i].magic = COMMUNICATOR_MAGIC;
        memcpy(welcomes[i].token, token, token_bytes);
        if (i && !socket_send(c->peers[i].socket, &welcomes[i], sizeof *welcomes)) communicator_lost(i, "it left at once");
    }
    free(hellos);
}

// All ranks meet. `devices`: how many this process sees; `fingerprint`: of what must be the same on all ranks; `token`:
// rank 0's `token_bytes` bytes, which the others receive. Returns the device this rank is to use. From here on the end
// of one rank is the end of all.
static inline size_t communicator_start(const Launch *launch, double timeout, size_t devices, uint64_t fingerprint,
                                        void *token, size_t token_bytes) {
    Communicator *c = communicator();
    CommunicatorHello hello;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    size_t known = launch->rank == 0 ? launch->ranks : 1, device;
    if (token_bytes > COMMUNICATOR_TOKEN_BYTES) die("a token of %zu bytes (a fault of this program)", token_bytes);
    CommunicatorWelcome *welcomes = (CommunicatorWelcome *)checked_calloc(known, sizeof *welcomes, "ranks");
    c->launch = *launch;
    c->timeout = timeout;
    c->what = "start";
    c->peers = (CommunicatorPeer *)checked_calloc(known, sizeof *c->peers, "ranks");
    for (size_t i = 0; i < known; i++) {
        c->peers[i].socket = -1;
        snprintf(c->peers[i].what, sizeof c->peers[i].what, "%s", c->what);
    }
    pthread_mutex_init(&c->sending, NULL);
    memset(&hello, 0, sizeof hello);
    memcpy(hello.host, launch->host, sizeof hello.host);
    snprintf(hello.visible, sizeof hello.visible, "%s", visible ? visible : "");
    hello.magic = COMMUNICATOR_MAGIC;
    hello.rank = launch->rank;
    hello.ranks = launch->ranks;
    hello.devices = devices;
    hello.fingerprint = fingerprint;
    run_context()->on_error = communicator_on_error;
    if (launch->rank == 0) {
        memcpy(c->peers[0].host, launch->host, sizeof launch->host);
        communicator_gather_ranks(c, &hello, welcomes, token, token_bytes);
    } else {
        int fd = communicator_connect(launch);
        socket_set_up(fd, COMMUNICATOR_MEET_SECONDS);
        if (!socket_send(fd, &hello, sizeof hello) || !socket_receive(fd, &welcomes[0], sizeof *welcomes) ||
            welcomes[0].magic != COMMUNICATOR_MAGIC) {
            fflush(NULL);
            _exit(1);  // rank 0 says why
        }
        c->peers[0].socket = fd;
        memcpy(token, welcomes[0].token, token_bytes);
    }
    device = (size_t)welcomes[0].device;
    free(welcomes);
    for (size_t i = 0; i < known; i++) c->peers[i].moved_at = now_seconds();
    if (pthread_create(&c->thread, NULL, communicator_thread, NULL) != 0) die("no thread for the other ranks");
    return device;
}

// The run has ended well here: waits until it has everywhere.
static inline void communicator_stop(void) {
    Communicator *c = communicator();
    if (!c->peers) return;
    communicator_mark(c->step, "the end");
    if (c->launch.rank != 0) communicator_tell(COMMUNICATOR_BYE, "the end");
    __atomic_store_n(&c->leaving, 1, __ATOMIC_RELEASE);
    pthread_join(c->thread, NULL);
    run_context()->on_error = NULL;
    free(c->peers);
    c->peers = NULL;
}

#endif
