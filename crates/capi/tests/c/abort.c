/* One thread of rank 0 waits for rank 1, and another one aborts: the wait ends there, and rank 1 is told who did it. */
#include "../../examples/check.h"
#include <pthread.h>
#include <string.h>

static railnetComm_t comm;

static void *wait_for_ever(void *unused) {
    int got;
    (void)unused;
    return railnetRecv(&got, 1, railnetInt, 1, comm, NULL) == railnetSuccess ? "a wait ended well" : NULL;
}

int main(void) {
    pthread_t thread;
    int rank, one = 1;
    void *trouble;
    CHECK(railnetCommInitFromEnv(&comm));
    CHECK(railnetCommUserRank(comm, &rank));
    if (rank == 0) {
        CHECK(railnetBarrier(comm, NULL));
        pthread_create(&thread, NULL, wait_for_ever, NULL);
        CHECK(railnetCommAbort(comm));
        pthread_join(thread, &trouble);
        return trouble != NULL;
    }
    CHECK(railnetBarrier(comm, NULL));
    if (railnetAllReduce(&one, &one, 1, railnetInt, railnetSum, comm, NULL) != railnetRemoteError)
        return 1;
    printf("%s\n", railnetGetLastError(comm));
    CHECK(railnetCommAbort(comm));
    return 0;
}
