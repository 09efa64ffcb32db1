/* Rank 1 dies: the others are told its name, and go on without it. */
#include "../../examples/check.h"
#include <signal.h>
#include <string.h>

int main(void) {
    railnetComm_t comm, rest;
    railnetResult_t result;
    railnetRequest_t request;
    int rank, ranks, one = 1, sum = 0;
    CHECK(railnetCommInitFromEnv(&comm));
    CHECK(railnetCommUserRank(comm, &rank));
    CHECK(railnetCommCount(comm, &ranks));
    result = railnetBarrier(comm, NULL);
    if (rank == 1)
        raise(SIGKILL);
    /* Rank 1 may die before the others are out of the barrier. */
    if (result == railnetSuccess)
        result = railnetAllReduce(&one, &sum, 1, railnetInt, railnetSum, comm, NULL);
    printf("%s\n%s\n", railnetGetErrorString(result), railnetGetLastError(comm));
    if (result != railnetRemoteError)
        return 1;
    CHECK(railnetCommGetAsyncError(comm, &result));
    if (result != railnetRemoteError || !strstr(railnetGetLastError(comm), "rank 1"))
        return 2;
    /* A call that is started now fails, too. */
    result = railnetAllReduce(&one, &sum, 1, railnetInt, railnetSum, comm, &request);
    if (result != railnetRemoteError || request != NULL)
        return 3;
    CHECK(railnetCommShrink(comm, NULL, 0, &rest));
    CHECK(railnetAllReduce(&one, &sum, 1, railnetInt, railnetSum, rest, NULL));
    printf("%d are left\n", sum);
    CHECK(railnetCommDestroy(comm));
    CHECK(railnetCommDestroy(rest));
    return sum != ranks - 1;
}
