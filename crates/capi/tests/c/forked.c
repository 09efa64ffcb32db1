/* A child has no use for its parent's communicator, and makes its own: with its parent's id, too. */
#include "../../examples/check.h"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int sum_of_ranks(railnetUniqueId id, int rank) {
    railnetComm_t comm;
    int sum = rank + 1;
    CHECK(railnetCommInitRank(&comm, 2, id, rank));
    CHECK(railnetAllReduce(&sum, &sum, 1, railnetInt, railnetSum, comm, NULL));
    CHECK(railnetCommDestroy(comm));
    return sum;
}

int main(void) {
    railnetComm_t alone;
    railnetRequest_t request;
    railnetUniqueId id;
    int child, status, one = 1;
    CHECK(railnetCommInitFromEnv(&alone));
    CHECK(railnetBarrier(alone, &request));
    CHECK(railnetGetUniqueId(&id));
    child = (int)fork();
    if (child == 0) {
        if (railnetAllReduce(&one, &one, 1, railnetInt, railnetSum, alone, NULL) != railnetInvalidUsage ||
            !strstr(railnetGetLastError(NULL), "was forked"))
            _exit(1);
        if (railnetWait(&request) != railnetInvalidUsage || railnetCommDestroy(alone) != railnetInvalidUsage)
            _exit(2);
        /* As rank 0, which needs the port that the parent holds. */
        _exit(sum_of_ranks(id, 0) == 3 ? 0 : 3);
    }
    if (sum_of_ranks(id, 1) != 3 || waitpid(child, &status, 0) != child || status != 0)
        return 1;
    CHECK(railnetWait(&request));
    CHECK(railnetAllReduce(&one, &one, 1, railnetInt, railnetSum, alone, NULL));
    CHECK(railnetCommDestroy(alone));
    printf("both are well\n");
    return 0;
}
