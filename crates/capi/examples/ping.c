/* A ball goes around: each rank puts it into the window of the next one, and signals. */
#include "check.h"

enum { ROUNDS = 1000 };

int main(void) {
    railnetComm_t comm;
    railnetWindow_t window;
    railnetWaitSignalDesc_t before = {1, 0};
    volatile long long *mine;
    void *start;
    long long ball;
    int rank, ranks, next, round;

    CHECK(railnetCommInitFromEnv(&comm));
    CHECK(railnetCommUserRank(comm, &rank));
    CHECK(railnetCommCount(comm, &ranks));
    next = (rank + 1) % ranks;
    before.peer = (rank + ranks - 1) % ranks;

    /* Without memory of ours the library allocates some, which the processes of a host share. */
    CHECK(railnetCommWindowRegister(comm, NULL, sizeof(*mine), &window));
    CHECK(railnetWinGetUserPtr(comm, window, &start));
    mine = (volatile long long *)start;

    for (round = 0; round < ROUNDS; round++) {
        if (rank != 0 || round > 0)
            CHECK(railnetWaitSignal(1, &before, window, comm));
        ball = *mine + 1;
        CHECK(railnetPutSignal(&ball, 1, railnetInt64, next, window, 0, comm));
    }
    if (rank == 0) {
        CHECK(railnetWaitSignal(1, &before, window, comm));
        printf("%d ranks passed it on %lld times\n", ranks, (long long)*mine);
        if (*mine != (long long)ROUNDS * ranks)
            return 1;
    }
    CHECK(railnetCommWindowDeregister(comm, window));
    CHECK(railnetCommDestroy(comm));
    return 0;
}
