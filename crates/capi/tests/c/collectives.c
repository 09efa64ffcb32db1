/* Every collective, send and receive on every rank, each result compared with what it has to be. */
#include "../../examples/check.h"
#include <string.h>

enum { COUNT = 1000, RANKS_MAX = 8 };

static int rank, ranks, failed;
static railnetComm_t comm;
static int64_t all[COUNT * RANKS_MAX], part[COUNT], out[COUNT * RANKS_MAX];

static void expect(int is_right, const char *what) {
    if (!is_right) {
        fprintf(stderr, "rank %d of %d: %s is wrong\n", rank, ranks, what);
        failed++;
    }
}

/* What rank `of` has at element `index`. */
static int64_t value(int of, size_t index) { return (int64_t)(of + 1) * 1000 + (int64_t)(index % 17); }

static void fill(void) {
    size_t index;
    int of;
    for (index = 0; index < COUNT; index++)
        part[index] = value(rank, index);
    for (of = 0; of < ranks; of++)
        for (index = 0; index < COUNT; index++)
            all[(size_t)of * COUNT + index] = value(rank, index) + of;
    memset(out, 0x55, sizeof(out));
}

static int64_t reduced(railnetRedOp_t op, size_t index) {
    int64_t result = value(0, index);
    int of;
    for (of = 1; of < ranks; of++) {
        int64_t other = value(of, index);
        switch (op) {
        case railnetSum: result += other; break;
        case railnetProd: result *= other; break;
        case railnetMax: result = other > result ? other : result; break;
        case railnetMin: result = other < result ? other : result; break;
        case railnetBand: result &= other; break;
        case railnetBor: result |= other; break;
        case railnetBxor: result ^= other; break;
        default: break;
        }
    }
    return result;
}

static void reductions(void) {
    static const railnetRedOp_t ops[] = {railnetSum, railnetProd, railnetMax, railnetMin,
                                         railnetBand, railnetBor, railnetBxor};
    size_t which, index;
    int root = ranks - 1;
    for (which = 0; which < sizeof(ops) / sizeof(*ops); which++) {
        int is_right = 1;
        fill();
        CHECK(railnetAllReduce(part, out, COUNT, railnetInt64, ops[which], comm, NULL));
        CHECK(railnetAllReduce(part, part, COUNT, railnetInt64, ops[which], comm, NULL));
        for (index = 0; index < COUNT; index++)
            is_right &= out[index] == reduced(ops[which], index) && part[index] == out[index];
        expect(is_right, "AllReduce");
        fill();
        CHECK(railnetReduce(part, rank == root ? out : NULL, COUNT, railnetInt64, ops[which], root, comm, NULL));
        for (index = 0; index < COUNT; index++)
            is_right &= rank != root || out[index] == reduced(ops[which], index);
        expect(is_right, "Reduce");
    }
    for (which = 0; which < 2; which++) {
        int is_right = 1, of;
        int64_t *block = which ? all + (size_t)rank * COUNT : out;
        fill();
        CHECK(railnetReduceScatter(all, block, COUNT, railnetInt64, railnetSum, comm, NULL));
        for (index = 0; index < COUNT; index++) {
            int64_t sum = 0;
            for (of = 0; of < ranks; of++)
                sum += value(of, index) + rank;
            is_right &= block[index] == sum;
        }
        expect(is_right, which ? "ReduceScatter in place" : "ReduceScatter");
    }
}

static void types(void) {
    int16_t shorts[3];
    double doubles[3];
    int index;
    for (index = 0; index < 3; index++) {
        shorts[index] = (int16_t)(rank - 2 * index);
        doubles[index] = rank + 0.5 * index;
    }
    CHECK(railnetAllReduce(shorts, shorts, 3, railnetInt16, railnetMin, comm, NULL));
    CHECK(railnetAllReduce(doubles, doubles, 3, railnetFloat64, railnetAvg, comm, NULL));
    for (index = 0; index < 3; index++) {
        expect(shorts[index] == -2 * index, "AllReduce of int16");
        expect(doubles[index] == (ranks - 1) / 2.0 + 0.5 * index, "AllReduce of float64");
    }
}

static void moves(void) {
    size_t index;
    int root = ranks / 2, of, is_right = 1;
    fill();
    CHECK(railnetBroadcast(rank == root ? part : NULL, out, COUNT, railnetInt64, root, comm, NULL));
    CHECK(railnetBroadcast(part, part, COUNT, railnetInt64, root, comm, NULL));
    for (index = 0; index < COUNT; index++)
        is_right &= out[index] == value(root, index) && part[index] == out[index];
    expect(is_right, "Broadcast");

    fill();
    CHECK(railnetAllGather(part, out, COUNT, railnetInt64, comm, NULL));
    for (of = 0; of < ranks; of++)
        for (index = 0; index < COUNT; index++)
            is_right &= out[(size_t)of * COUNT + index] == value(of, index);
    memset(out, 0, sizeof(out));
    memcpy(out + (size_t)rank * COUNT, part, sizeof(part));
    CHECK(railnetAllGather(out + (size_t)rank * COUNT, out, COUNT, railnetInt64, comm, NULL));
    for (of = 0; of < ranks; of++)
        for (index = 0; index < COUNT; index++)
            is_right &= out[(size_t)of * COUNT + index] == value(of, index);
    expect(is_right, "AllGather");

    fill();
    CHECK(railnetAllToAll(all, out, COUNT, railnetInt64, comm, NULL));
    for (of = 0; of < ranks; of++)
        for (index = 0; index < COUNT; index++)
            is_right &= out[(size_t)of * COUNT + index] == value(of, index) + rank;
    expect(is_right, "AllToAll");

    fill();
    CHECK(railnetGather(part, rank == root ? out : NULL, COUNT, railnetInt64, root, comm, NULL));
    for (of = 0; of < ranks && rank == root; of++)
        for (index = 0; index < COUNT; index++)
            is_right &= out[(size_t)of * COUNT + index] == value(of, index);
    expect(is_right, "Gather");

    fill();
    CHECK(railnetScatter(rank == root ? all : NULL, out, COUNT, railnetInt64, root, comm, NULL));
    for (index = 0; index < COUNT; index++)
        is_right &= out[index] == value(root, index) + rank;
    expect(is_right, "Scatter");
    CHECK(railnetBarrier(comm, NULL));
    CHECK(railnetAllReduce(NULL, NULL, 0, railnetFloat32, railnetSum, comm, NULL));
}

static void transfers(void) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, round, index, is_right = 1;
    int64_t own = 0;
    railnetRequest_t requests[3];
    fill();
    /* All at once around the ring, and to itself; a group in a group ends with the outer one. */
    CHECK(railnetGroupStart());
    CHECK(railnetSend(part, COUNT, railnetInt64, next, comm, NULL));
    CHECK(railnetGroupStart());
    CHECK(railnetRecv(out, COUNT, railnetInt64, before, comm, NULL));
    CHECK(railnetGroupEnd());
    if (ranks > 1) {
        CHECK(railnetRecv(&own, 1, railnetInt64, rank, comm, NULL));
        CHECK(railnetSend(part, 1, railnetInt64, rank, comm, NULL));
    }
    CHECK(railnetGroupEnd());
    for (index = 0; index < COUNT; index++)
        is_right &= out[index] == value(before, (size_t)index);
    expect(is_right && (ranks == 1 || own == part[0]), "what went around");

    /* Requests: several calls under way, in a group and not. */
    for (round = 0; round < 20; round++) {
        fill();
        CHECK(railnetGroupStart());
        CHECK(railnetAllReduce(part, out, COUNT, railnetInt64, railnetSum, comm, &requests[0]));
        CHECK(railnetAllReduce(part, out + COUNT, COUNT, railnetInt64, railnetMax, comm, NULL));
        CHECK(railnetGroupEnd());
        CHECK(railnetBarrier(comm, &requests[1]));
        CHECK(railnetAllGather(&part[3], &all[COUNT], 1, railnetInt64, comm, &requests[2]));
        CHECK(railnetWaitAll(3, requests));
        expect(out[5] == reduced(railnetSum, 5) && out[COUNT + 5] == reduced(railnetMax, 5), "what was started");
        expect(all[COUNT + before] == value(before, 3), "what was started beside it");
        expect(!requests[0] && !requests[1] && !requests[2], "a request that has ended");
    }
    if (ranks > 1) {
        if (rank == 0)
            CHECK(railnetSend(part, COUNT, railnetInt64, 1, comm, &requests[0]));
        if (rank == 1)
            CHECK(railnetRecv(out, COUNT, railnetInt64, 0, comm, &requests[0]));
        if (rank < 2)
            CHECK(railnetWait(&requests[0]));
        expect(rank != 1 || out[7] == value(0, 7), "what was received");
    }
}

/* A communicator of some, and one whose ranks meet by an id. */
static void parts(void) {
    railnetComm_t half, met;
    railnetUniqueId id;
    int size, own, sum = 1;
    CHECK(railnetCommSplit(comm, rank % 2, -rank, &half));
    CHECK(railnetCommCount(half, &size));
    CHECK(railnetCommUserRank(half, &own));
    expect(size == (ranks + 1 - rank % 2) / 2 && own == size - 1 - rank / 2, "the part");
    CHECK(railnetAllReduce(&sum, &sum, 1, railnetInt, railnetSum, half, NULL));
    expect(sum == size, "a sum over the part");
    CHECK(railnetCommDestroy(half));
    CHECK(railnetCommSplit(comm, rank ? RAILNET_SPLIT_NOCOLOR : 3, 0, &half));
    expect((half == NULL) == (rank != 0), "the handle of a rank without a color");
    CHECK(railnetCommDestroy(half));

    if (rank == 0)
        CHECK(railnetGetUniqueId(&id));
    CHECK(railnetBroadcast(&id, &id, sizeof(id), railnetChar, 0, comm, NULL));
    /* The other way round would do as well, but rank 0 has to be where the id is from. */
    CHECK(railnetCommInitRank(&met, ranks, id, rank));
    CHECK(railnetCommUserRank(met, &own));
    sum = rank;
    CHECK(railnetAllReduce(&sum, &sum, 1, railnetInt, railnetSum, met, NULL));
    expect(own == rank && sum == ranks * (ranks - 1) / 2, "the communicator by an id");
    CHECK(railnetCommFinalize(met));
    CHECK(railnetCommDestroy(met));
}

/* Memory of ours in a window: what is put and got, and how signals are counted. */
static void windows(void) {
    static int32_t mine[64];
    int32_t seen[4] = {0, 0, 0, 0}, gives[4];
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, index;
    railnetWaitSignalDesc_t wanted[2];
    railnetWindow_t window;
    uint64_t left;
    void *start;
    CHECK(railnetCommWindowRegister(comm, mine, sizeof(mine), &window));
    CHECK(railnetWinGetUserPtr(comm, window, &start));
    expect(start == (void *)mine, "where a window begins");
    for (index = 0; index < 4; index++)
        gives[index] = 100 * rank + index;
    CHECK(railnetPut(gives, 2, railnetInt32, next, window, 8 * sizeof(*mine), comm));
    CHECK(railnetPutSignal(gives + 2, 2, railnetInt32, next, window, 10 * sizeof(*mine), comm));
    CHECK(railnetSignal(next, window, comm));
    CHECK(railnetSignal(next, window, comm));
    wanted[0].opCnt = wanted[1].opCnt = 1;
    wanted[0].peer = wanted[1].peer = before;
    CHECK(railnetWaitSignal(2, wanted, window, comm));
    for (index = 0; index < 4; index++)
        expect(mine[8 + index] == 100 * before + index, "what was put");
    CHECK(railnetFlush(window, comm));
    CHECK(railnetBarrier(comm, NULL));
    CHECK(railnetSignalCount(before, window, comm, &left));
    expect(left == 1, "the count of signals");
    CHECK(railnetGet(seen, 4, railnetInt32, next, window, 8 * sizeof(*mine), comm));
    for (index = 0; index < 4; index++)
        expect(seen[index] == gives[index], "what was got");
    CHECK(railnetCommWindowDeregister(comm, window));
}

int main(void) {
    CHECK(railnetCommInitFromEnv(&comm));
    CHECK(railnetCommUserRank(comm, &rank));
    CHECK(railnetCommCount(comm, &ranks));
    reductions();
    types();
    moves();
    transfers();
    parts();
    windows();
    CHECK(railnetCommDestroy(comm));
    if (failed == 0)
        printf("all is right\n");
    return failed != 0;
}
