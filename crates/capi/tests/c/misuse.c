/* Every mistake that can be found out is an error with a code and a message, and the library goes on after it. */
#include <pthread.h>
#include <railnet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int checks, failed;

static void expect(railnetResult_t result, railnetResult_t wanted, const char *words, const char *call, int line) {
    const char *text = railnetGetLastError(NULL);
    checks++;
    if (result != wanted || (wanted != railnetSuccess && !strstr(text, words))) {
        fprintf(stderr, "line %d: %s gives %d, not %d, and says: %s\n", line, call, (int)result, (int)wanted, text);
        failed++;
    }
}

#define GOOD(call) expect(call, railnetSuccess, "", #call, __LINE__)
#define BAD(call, wanted, words) expect(call, wanted, words, #call, __LINE__)
#define ARGUMENT(call, words) BAD(call, railnetInvalidArgument, words)
#define USAGE(call, words) BAD(call, railnetInvalidUsage, words)

static float in[64], out[64];
static railnetComm_t comm;

static void arguments(void) {
    const railnetDataType_t float32 = railnetFloat32, no_type = (railnetDataType_t)14, negative = (railnetDataType_t)-1;
    const railnetRedOp_t sum = railnetSum, no_op = (railnetRedOp_t)8, large = (railnetRedOp_t)0x7fffffff;
    railnetComm_t none, other;
    railnetUniqueId id;
    railnetRequest_t request = NULL;
    char unaligned[16];
    int number;

    ARGUMENT(railnetGetVersion(NULL), "version is NULL");
    ARGUMENT(railnetGetVersion((int *)(void *)(unaligned + 1 + ((size_t)unaligned % 2))), "no multiple of 4");
    ARGUMENT(railnetGetUniqueId(NULL), "uniqueId is NULL");
    ARGUMENT(railnetCommInitFromEnv(NULL), "comm is NULL");
    memset(&id, 0, sizeof(id));
    ARGUMENT(railnetCommInitRank(NULL, 1, id, 0), "comm is NULL");
    ARGUMENT(railnetCommInitRank(&none, 2, id, 0), "commId is none");
    GOOD(railnetGetUniqueId(&id));
    ARGUMENT(railnetCommInitRank(&none, 0, id, 0), "nranks is 0");
    ARGUMENT(railnetCommInitRank(&none, -3, id, 0), "nranks is -3");
    ARGUMENT(railnetCommInitRank(&none, 2, id, 2), "rank is 2: ranks are 0 to 1");
    ARGUMENT(railnetCommInitRank(&none, 2, id, -1), "rank is -1");
    GOOD(railnetCommInitRank(&other, 1, id, 0));
    USAGE(railnetCommInitRank(&none, 1, id, 0), "each id is for one communicator");
    if (none != NULL)
        failed++;

    ARGUMENT(railnetCommCount(comm, NULL), "count is NULL");
    ARGUMENT(railnetCommUserRank(NULL, &number), "comm is NULL");
    ARGUMENT(railnetCommUserRank((railnetComm_t)(void *)&id, &number), "comm is no communicator");
    ARGUMENT(railnetCommGetAsyncError(comm, NULL), "asyncError is NULL");
    ARGUMENT(railnetCommSetTimeout(comm, 0), "milliseconds is 0");
    ARGUMENT(railnetCommSplit(comm, 0, 0, NULL), "newcomm is NULL");
    ARGUMENT(railnetCommSplit(comm, -2, 0, &none), "color is -2");
    ARGUMENT(railnetCommShrink(comm, NULL, -1, &none), "excludeRanksCount is -1");
    ARGUMENT(railnetCommShrink(comm, NULL, 1, &none), "excludeRanksList is NULL");

    ARGUMENT(railnetAllReduce(in, out, 64, no_type, sum, comm, NULL), "datatype is 14: types are 0 to 13");
    ARGUMENT(railnetAllReduce(in, out, 64, negative, sum, comm, NULL), "datatype is -1");
    ARGUMENT(railnetAllReduce(in, out, 64, float32, no_op, comm, NULL), "op is 8");
    ARGUMENT(railnetAllReduce(in, out, 64, float32, large, comm, NULL), "op is 2147483647");
    ARGUMENT(railnetAllReduce(in, out, 64, float32, railnetBand, comm, NULL), "band");
    ARGUMENT(railnetAllReduce(NULL, out, 64, float32, sum, comm, NULL), "sendbuff is NULL: this rank's part has 256");
    ARGUMENT(railnetAllReduce(in, NULL, 64, float32, sum, comm, NULL), "recvbuff is NULL");
    ARGUMENT(railnetAllReduce(in, in + 3, 32, float32, sum, comm, NULL), "overlap");
    ARGUMENT(railnetAllReduce(in, out, (size_t)-1, float32, sum, comm, NULL), "bytes than can be addressed");
    ARGUMENT(railnetAllReduce(in, out, 64, float32, sum, NULL, NULL), "comm is NULL");
    ARGUMENT(railnetAllReduce(in, out, 64, float32, sum, comm, (railnetRequest_t *)(void *)(unaligned + 1)), "request is");
    ARGUMENT(railnetBroadcast(in, out, 64, float32, 1, comm, NULL), "root is 1: ranks are 0 to 0");
    ARGUMENT(railnetReduce(in, out, 64, float32, sum, -1, comm, NULL), "root is -1");
    ARGUMENT(railnetAllToAll(in, in, 64, float32, comm, NULL), "overlap");
    ARGUMENT(railnetSend(in, 64, float32, 1, comm, NULL), "peer is 1");
    ARGUMENT(railnetRecv(out, 64, float32, -1, comm, NULL), "peer is -1");
    ARGUMENT(railnetSend(in, (size_t)1 << 62, float32, 0, comm, NULL), "fit no memory");
    USAGE(railnetSend(in, 64, float32, 0, comm, NULL), "sends to itself");

    ARGUMENT(railnetWait(NULL), "request is NULL");
    request = (railnetRequest_t)(void *)comm;
    ARGUMENT(railnetWait(&request), "request is none");
    ARGUMENT(railnetTest(&request, &number), "request is none");
    request = NULL;
    GOOD(railnetWait(&request));
    ARGUMENT(railnetTest(&request, NULL), "done is NULL");
    ARGUMENT(railnetWaitAll(-1, &request), "count is -1");
    GOOD(railnetCommDestroy(other));

    /* After all of that the communicator is as good as before. */
    in[0] = 3;
    GOOD(railnetAllReduce(in, out, 64, float32, sum, comm, NULL));
    if (out[0] != 3)
        failed++;
}

static void reductions(void) {
    railnetRedOp_t twice, again;
    float scalar = 2;
    int32_t numbers[2] = {1, 2};
    ARGUMENT(railnetRedOpCreatePreMulSum(NULL, &scalar, railnetFloat32, comm), "op is NULL");
    ARGUMENT(railnetRedOpCreatePreMulSum(&twice, NULL, railnetFloat32, comm), "scalar is NULL");
    ARGUMENT(railnetRedOpCreatePreMulSum(&twice, &scalar, (railnetDataType_t)99, comm), "datatype is 99");
    GOOD(railnetRedOpCreatePreMulSum(&twice, &scalar, railnetFloat32, comm));
    ARGUMENT(railnetAllReduce(numbers, numbers, 2, railnetInt32, twice, comm, NULL), "the scalar of a pre-multiplied sum");
    GOOD(railnetRedOpDestroy(twice, comm));
    ARGUMENT(railnetRedOpDestroy(twice, comm), "op is 8");
    ARGUMENT(railnetAllReduce(in, out, 64, railnetFloat32, twice, comm, NULL), "op is 8");
    ARGUMENT(railnetRedOpDestroy(railnetSum, comm), "always there");
    /* A number is not given again. */
    GOOD(railnetRedOpCreatePreMulSum(&again, &scalar, railnetFloat32, comm));
    if (again == twice)
        failed++;
}

static void groups(void) {
    railnetComm_t part;
    railnetRequest_t request = NULL;
    in[0] = 5;
    out[0] = 0;
    USAGE(railnetGroupEnd(), "in no group");
    /* A call that is wrong keeps the others of its group from being started. */
    GOOD(railnetGroupStart());
    GOOD(railnetAllReduce(in, out, 64, railnetFloat32, railnetSum, comm, NULL));
    ARGUMENT(railnetAllReduce(in, out, 64, railnetFloat32, railnetSum, NULL, NULL), "comm is NULL");
    ARGUMENT(railnetGroupEnd(), "nothing of the group was started, because a call in it was wrong: comm is NULL");
    if (out[0] != 0)
        failed++;
    GOOD(railnetGroupStart());
    USAGE(railnetCommSplit(comm, 0, 0, &part), "in a group");
    USAGE(railnetCommDestroy(comm), "in a group");
    USAGE(railnetWait(&request), "in a group");
    GOOD(railnetGroupEnd());
    GOOD(railnetGroupStart());
    GOOD(railnetSend(in, 64, railnetFloat32, 0, comm, NULL));
    USAGE(railnetGroupEnd(), "each send needs its receive");
    GOOD(railnetGroupStart());
    GOOD(railnetSend(in, 64, railnetFloat32, 0, comm, NULL));
    GOOD(railnetRecv(out, 63, railnetFloat32, 0, comm, &request));
    ARGUMENT(railnetGroupEnd(), "have to be equal");
    GOOD(railnetGroupStart());
    GOOD(railnetRecv(out, 64, railnetFloat32, 0, comm, &request));
    GOOD(railnetSend(in, 64, railnetFloat32, 0, comm, NULL));
    GOOD(railnetGroupEnd());
    GOOD(railnetWait(&request));
    if (out[0] != 5)
        failed++;
}

static void windows(void) {
    railnetWindow_t window, gone;
    railnetWaitSignalDesc_t wanted = {1, 0};
    railnetComm_t other;
    uint64_t count;
    ARGUMENT(railnetCommWindowRegister(comm, NULL, 64, NULL), "win is NULL");
    BAD(railnetCommWindowRegister(comm, (char *)in + 4, 64, &window), railnetRemoteError, "multiple of 8");
    BAD(railnetCommWindowRegister(comm, NULL, (size_t)1 << 60, &window), railnetRemoteError, "larger than any memory");
    GOOD(railnetCommWindowRegister(comm, NULL, 64, &window));
    ARGUMENT(railnetPut(in, 16, (railnetDataType_t)77, 0, window, 0, comm), "datatype is 77");
    ARGUMENT(railnetPut(NULL, 16, railnetFloat32, 0, window, 0, comm), "localbuff is NULL");
    ARGUMENT(railnetPut(in, 16, railnetFloat32, 1, window, 0, comm), "peer is 1");
    ARGUMENT(railnetPut(in, 16, railnetFloat32, 0, window, 1, comm), "64 B");
    ARGUMENT(railnetPut(in, 16, railnetFloat32, 0, window, (size_t)-1, comm), "64 B");
    ARGUMENT(railnetGet(out, 17, railnetFloat32, 0, window, 0, comm), "64 B");
    ARGUMENT(railnetSignal(-1, window, comm), "peer is -1");
    ARGUMENT(railnetWaitSignal(1, NULL, window, comm), "signalDescs is NULL");
    ARGUMENT(railnetWaitSignal(-1, &wanted, window, comm), "nDesc is -1");
    wanted.opCnt = 0;
    ARGUMENT(railnetWaitSignal(1, &wanted, window, comm), "opCnt is 0");
    wanted.opCnt = 1;
    /* No rank signals: the wait ends at its timeout. */
    GOOD(railnetCommSetTimeout(comm, 20));
    BAD(railnetWaitSignal(1, &wanted, window, comm), railnetRemoteError, "has sent 0 of 1 in 20.0ms");
    GOOD(railnetCommSetTimeout(comm, 30000));
    GOOD(railnetSignal(0, window, comm));
    GOOD(railnetWaitSignal(1, &wanted, window, comm));
    ARGUMENT(railnetSignalCount(0, window, comm, NULL), "count is NULL");
    GOOD(railnetCommSplit(comm, 0, 0, &other));
    ARGUMENT(railnetSignal(0, window, other), "another communicator");
    GOOD(railnetCommDestroy(other));
    USAGE(railnetCommDestroy(comm), "has windows, 1 in all");
    gone = window;
    GOOD(railnetCommWindowDeregister(comm, window));
    ARGUMENT(railnetCommWindowDeregister(comm, gone), "win is no window");
    ARGUMENT(railnetSignalCount(0, gone, comm, &count), "win is no window");
    GOOD(railnetCommWindowDeregister(comm, NULL));
}

static void *sums(void *argument) {
    railnetComm_t own = *(railnetComm_t *)argument;
    float data[256], index;
    int round;
    for (round = 0; round < 200; round++) {
        for (index = 0; index < 256; index++)
            data[(int)index] = index;
        if (railnetAllReduce(data, data, 256, railnetFloat32, railnetSum, own, NULL) != railnetSuccess)
            return "a call of a thread failed";
        if (data[255] != 255)
            return "a sum of a thread is wrong";
    }
    return NULL;
}

static void *mistakes(void *argument) {
    int round;
    (void)argument;
    for (round = 0; round < 200; round++)
        if (railnetAllReduce(in, out, 64, (railnetDataType_t)(20 + round), railnetSum, comm, NULL) != railnetInvalidArgument)
            return "a mistake of a thread was not found out";
    return NULL;
}

/* Threads with a communicator each, one that makes mistakes, and one whose communicator is destroyed by another. */
static void threads(void) {
    enum { THREADS = 4 };
    railnetComm_t comms[THREADS], gone;
    pthread_t ids[THREADS + 1];
    void *trouble;
    int which;
    for (which = 0; which < THREADS; which++)
        GOOD(railnetCommSplit(comm, 0, 0, &comms[which]));
    BAD(railnetAllReduce(in, out, 64, (railnetDataType_t)14, railnetSum, comm, NULL), railnetInvalidArgument, "is 14");
    for (which = 0; which < THREADS; which++)
        pthread_create(&ids[which], NULL, sums, &comms[which]);
    pthread_create(&ids[THREADS], NULL, mistakes, NULL);
    for (which = 0; which <= THREADS; which++) {
        pthread_join(ids[which], &trouble);
        if (trouble) {
            fprintf(stderr, "%s\n", (char *)trouble);
            failed++;
        }
    }
    /* What went wrong in other threads is not the last error of this one. */
    if (!strstr(railnetGetLastError(NULL), "is 14") || !strstr(railnetGetLastError(comm), "datatype is"))
        failed++;
    gone = comms[0];
    for (which = 0; which < THREADS; which++)
        GOOD(railnetCommDestroy(comms[which]));
    pthread_create(&ids[0], NULL, sums, &gone);
    pthread_join(ids[0], &trouble);
    if (!trouble)
        failed++;
}

static void ends(void) {
    railnetComm_t gone = comm, next;
    railnetRequest_t request, again;
    railnetResult_t broken;
    int count;
    GOOD(railnetAllReduce(in, out, 64, railnetFloat32, railnetSum, comm, &request));
    again = request;
    GOOD(railnetWait(&request));
    ARGUMENT(railnetWait(&again), "request is none");
    GOOD(railnetBarrier(comm, &request));
    GOOD(railnetCommFinalize(comm));
    USAGE(railnetBarrier(comm, NULL), "was finalized");
    GOOD(railnetCommDestroy(comm));
    /* A request of a communicator that is gone has ended, and can be waited for. */
    GOOD(railnetWait(&request));
    ARGUMENT(railnetCommCount(gone, &count), "comm is no communicator: it was destroyed");
    ARGUMENT(railnetCommDestroy(gone), "comm is no communicator");
    ARGUMENT(railnetAllReduce(in, out, 64, railnetFloat32, railnetSum, gone, NULL), "comm is no communicator");
    GOOD(railnetCommDestroy(NULL));
    GOOD(railnetCommAbort(NULL));

    GOOD(railnetCommInitFromEnv(&next));
    ARGUMENT(railnetCommCount(gone, &count), "comm is no communicator");
    GOOD(railnetCommGetAsyncError(next, &broken));
    if (broken != railnetSuccess || *railnetGetLastError(next))
        failed++;
    GOOD(railnetCommRevoke(next));
    BAD(railnetBarrier(next, NULL), railnetRemoteError, "aborted the communicator");
    GOOD(railnetCommGetAsyncError(next, &broken));
    if (broken != railnetRemoteError || !strstr(railnetGetLastError(next), "aborted"))
        failed++;
    GOOD(railnetCommAbort(next));
    ARGUMENT(railnetCommAbort(next), "comm is no communicator");

    setenv("RAILNET_TIMEOUT", "soon", 1);
    USAGE(railnetCommInitFromEnv(&next), "RAILNET_TIMEOUT is \"soon\": a time such as 30s");
    unsetenv("RAILNET_TIMEOUT");
    if (strcmp(railnetGetErrorString((railnetResult_t)77), "unknown result code") != 0)
        failed++;
}

int main(void) {
    alarm(100);
    GOOD(railnetCommInitFromEnv(&comm));
    arguments();
    reductions();
    groups();
    windows();
    threads();
    ends();
    printf("%d checks, %d failed\n", checks, failed);
    return failed != 0;
}
