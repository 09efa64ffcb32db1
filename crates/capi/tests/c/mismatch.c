/* Ranks that mean different calls are told so: counts, types and reductions that differ, also between two. */
#include "../../examples/check.h"
#include <string.h>

static void differ(railnetResult_t result, railnetComm_t comm, const char *words) {
    const char *text = railnetGetLastError(comm);
    if (result != railnetInvalidUsage || !strstr(text, words)) {
        fprintf(stderr, "it gives %d and says, without \"%s\": %s\n", (int)result, words, text);
        exit(1);
    }
}

int main(void) {
    static int data[2000], out[2000];
    railnetComm_t world, comm;
    int rank;
    CHECK(railnetCommInitFromEnv(&world));
    CHECK(railnetCommUserRank(world, &rank));

    CHECK(railnetCommSplit(world, 0, 0, &comm));
    differ(railnetAllReduce(data, out, rank ? 999 : 1000, railnetInt, railnetSum, comm, NULL), comm, "(count)");
    /* It stays so. */
    differ(railnetBarrier(comm, NULL), comm, "was not begun");
    CHECK(railnetCommDestroy(comm));

    CHECK(railnetCommSplit(world, 0, 0, &comm));
    differ(railnetAllReduce(data, out, 1000, rank ? railnetInt : railnetFloat, railnetSum, comm, NULL), comm, "type");
    CHECK(railnetCommDestroy(comm));

    CHECK(railnetCommSplit(world, 0, 0, &comm));
    differ(railnetAllReduce(data, out, 1000, railnetInt, rank ? railnetMax : railnetMin, comm, NULL), comm, "(operation)");
    CHECK(railnetCommDestroy(comm));

    CHECK(railnetCommSplit(world, 0, 0, &comm));
    /* What is small has left before the receiver can complain. */
    if (rank == 0)
        railnetSend(data, 1000, railnetInt, 1, comm, NULL);
    else
        differ(railnetRecv(out, 999, railnetInt, 0, comm, NULL), comm, "(count)");
    CHECK(railnetBarrier(world, NULL));
    CHECK(railnetCommDestroy(comm));
    CHECK(railnetCommDestroy(world));
    return 0;
}
