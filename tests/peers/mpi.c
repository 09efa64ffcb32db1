/* One rank of an MPI library as a contestant of `railnet bench live`. Works with Open MPI and MPICH.
 *
 * Every rank has a connection of its own to the runner and waits in read() between turns, so that it takes no processor
 * time from the others. The conversation is described in crates/cli/src/bench/live/protocol.rs.
 *
 *   mpicc -O3 -o peer mpi.c && mpirun -np 2 ./peer SOCKET */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define STRINGS(a) #a
#define STRING(a) STRINGS(a)
#if defined(OMPI_MAJOR_VERSION)
#define LIBRARY "Open MPI " STRING(OMPI_MAJOR_VERSION) "." STRING(OMPI_MINOR_VERSION) "." STRING(OMPI_RELEASE_VERSION)
#elif defined(MPICH_VERSION)
#define LIBRARY "MPICH " MPICH_VERSION
#else
#define LIBRARY "MPI"
#endif

/* A rank that hangs inside the library ends after this long, whatever has become of the runner. */
enum { LIMIT_SECONDS = 180 };
/* Larger buffers are given back after each turn, so that contestants do not need memory all at once. */
#define KEPT_BYTES ((size_t)64 << 20)

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, SEND_RECEIVE, COLLECTIVES };
static const char *const NAMES[COLLECTIVES] = {"all_reduce", "all_gather", "reduce_scatter",
                                               "broadcast",  "alltoall",   "sendrecv"};

static int rank, ranks;
static float *input, *output;
static size_t capacity;

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static double processor_us(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* What a rank gives at an index: a small whole number, so that sums are exact in any order. */
static inline float value(uint32_t owner, uint32_t index, uint32_t salt) {
    return (float)(((index * 2654435761u) ^ (owner * 0x9e3779b9u + salt * 0x85ebca6bu)) >> 22);
}

static float sum(uint32_t index, uint32_t salt) {
    float total = 0;
    for (int owner = 0; owner < ranks; owner++) total += value((uint32_t)owner, index, salt);
    return total;
}

static void fill(int collective, size_t count, uint32_t salt) {
    for (size_t i = 0; i < count; i++) input[i] = value((uint32_t)rank, (uint32_t)i, salt);
    /* Every byte one: not a number, and so equal to nothing that is expected. */
    memset(output, 0xff, count * sizeof(float));
    if (collective == BROADCAST && rank == 0) memcpy(output, input, count * sizeof(float));
}

static long wrong(int collective, size_t count, uint32_t salt) {
    size_t block = count / (size_t)ranks, start = (size_t)rank * block;
    long bad = 0;
    switch (collective) {
    case ALL_REDUCE:
        for (size_t i = 0; i < count; i++) bad += output[i] != sum((uint32_t)i, salt);
        break;
    case REDUCE_SCATTER:
        for (size_t i = 0; i < block; i++) bad += output[i] != sum((uint32_t)(start + i), salt);
        break;
    case BROADCAST:
        for (size_t i = 0; i < count; i++) bad += output[i] != value(0, (uint32_t)i, salt);
        break;
    case SEND_RECEIVE:
        for (size_t i = 0; rank < 2 && i < count; i++) bad += output[i] != value((uint32_t)(1 - rank), (uint32_t)i, salt);
        break;
    default:
        for (int owner = 0; owner < ranks; owner++) {
            size_t from = collective == ALL_TO_ALL ? start : 0;
            for (size_t i = 0; i < block; i++)
                bad += output[(size_t)owner * block + i] != value((uint32_t)owner, (uint32_t)(from + i), salt);
        }
    }
    return bad;
}

/* One call. The count is that of the largest buffer of a rank, as nccl-tests has it. */
static inline void call(int collective, size_t count) {
    int whole = (int)count, block = (int)(count / (size_t)ranks);
    switch (collective) {
    case ALL_REDUCE: MPI_Allreduce(input, output, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(input, block, MPI_FLOAT, output, block, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(input, output, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(output, whole, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case ALL_TO_ALL: MPI_Alltoall(input, block, MPI_FLOAT, output, block, MPI_FLOAT, MPI_COMM_WORLD); break;
    case SEND_RECEIVE: /* there and back */
        if (rank == 0) {
            MPI_Send(input, whole, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(output, whole, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            MPI_Recv(output, whole, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(input, whole, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
        }
        break;
    default: break;
    }
}

static int ascending(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void release(void) {
    free(input);
    free(output);
    input = output = NULL;
    capacity = 0;
}

static int reserve(size_t bytes) {
    if (bytes <= capacity) return 0;
    release();
    if (posix_memalign((void **)&input, 4096, bytes) || posix_memalign((void **)&output, 4096, bytes)) return -1;
    capacity = bytes;
    return 0;
}

static void measure(FILE *runner, int collective, size_t bytes, long warmup, long batches, long calls, uint32_t salt) {
    size_t count = bytes / sizeof(float);
    double *times = malloc((size_t)batches * sizeof(double));
    if (!times || reserve(bytes) || count > INT32_MAX) {
        fprintf(runner, "{\"error\": \"no room for %zu bytes\"}\n", bytes);
        free(times);
        return;
    }
    fill(collective, count, salt);
    for (long i = 0; i < warmup; i++) call(collective, count);
    /* Ranks that have no part in a ping-pong must not spin in a barrier beside it. */
    if (collective != SEND_RECEIVE) MPI_Barrier(MPI_COMM_WORLD);
    double share = (double)calls * (collective == SEND_RECEIVE ? 2 : 1);
    double processor = processor_us(), began = now_us(), last = began;
    for (long batch = 0; batch < batches; batch++) {
        for (long i = 0; i < calls; i++) call(collective, count);
        double now = now_us();
        times[batch] = (now - last) / share;
        last = now;
    }
    processor = processor_us() - processor;
    long bad = batches > 0 ? wrong(collective, count, salt) : 0;
    /* The next answer must not pass for the last one. */
    fill(collective, count, salt + 1);
    call(collective, count);
    bad += wrong(collective, count, salt + 1);
    qsort(times, (size_t)batches, sizeof(double), ascending);
    fprintf(runner,
            "{\"median_us\": %.4f, \"least_us\": %.4f, \"mean_us\": %.4f, \"processor_us\": %.4f, \"wrong\": %ld}\n",
            times[batches / 2], times[0], (last - began) / (share * (double)batches),
            processor / (share * (double)batches), bad);
    free(times);
    if (capacity >= KEPT_BYTES) release();
}

static int connected(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int runner = socket(AF_UNIX, SOCK_STREAM, 0);
    if (strlen(path) >= sizeof(address.sun_path)) return -1;
    strcpy(address.sun_path, path);
    if (runner < 0 || connect(runner, (struct sockaddr *)&address, sizeof(address)) != 0) return -1;
    return runner;
}

int main(int argc, char **argv) {
    char line[256], name[32];
    long warmup, batches, calls;
    size_t bytes;
    uint32_t salt;

    alarm(LIMIT_SECONDS);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int runner = argc == 2 ? connected(argv[1]) : -1;
    FILE *in = runner < 0 ? NULL : fdopen(runner, "r"), *out = runner < 0 ? NULL : fdopen(dup(runner), "w");
    if (!in || !out) {
        fprintf(stderr, "usage: mpirun -np RANKS %s SOCKET, where railnet bench live listens\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    fprintf(out, "{\"rank\": %d, \"ranks\": %d, \"name\": \"%s\"}\n", rank, ranks, LIBRARY);
    fflush(out);
    for (;;) {
        alarm(0);
        if (!fgets(line, sizeof(line), in)) _exit(1); /* the runner is gone */
        alarm(LIMIT_SECONDS);
        if (strcmp(line, "quit\n") == 0) break;
        int collective = COLLECTIVES;
        if (sscanf(line, "run %31s %zu %ld %ld %ld %u", name, &bytes, &warmup, &batches, &calls, &salt) == 6 &&
            batches > 0 && calls > 0)
            for (collective = 0; collective < COLLECTIVES && strcmp(name, NAMES[collective]) != 0;) collective++;
        if (collective == COLLECTIVES)
            fprintf(out, "{\"unsupported\": \"this program cannot do it\"}\n");
        else
            measure(out, collective, bytes, warmup, batches, calls, salt);
        fflush(out);
    }
    MPI_Finalize();
    return 0;
}
