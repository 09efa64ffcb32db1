/*
 * Railnet's API for C: collectives, sends and receives, and one-sided windows between real processes, over shared
 * memory, TCP or RoCEv2 in user space.
 *
 * Names, numbers and rules are those of NCCL with another prefix, for memory of the host. Where NCCL has a stream,
 * there is a request: with NULL a call returns when this rank's part is done and its buffers may be used again;
 * otherwise it returns at once, and the buffers are the library's until railnetWait or railnetTest says so.
 *
 * Every rank of a communicator makes the same calls in the same order. No call waits for ever: a rank that is missing,
 * lost, or makes another call is an error on every rank, and railnetGetLastError names it.
 *
 * Functions may be called from several threads. Those of one communicator are made in the order that all ranks have,
 * so that two threads need an order of their own, or a communicator each. A child of fork() makes its own communicators.
 *
 * Handles are checked: one that was destroyed, or never was one, is an error. What a program passes is checked as far as
 * it can be: pointers other than NULL must lead to as much memory as the call uses.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef RAILNET_H
#define RAILNET_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header; railnetGetVersion says that of the library. */
#define RAILNET_MAJOR 0
#define RAILNET_MINOR 1
#define RAILNET_PATCH 0
#define RAILNET_VERSION(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
#define RAILNET_VERSION_CODE RAILNET_VERSION(RAILNET_MAJOR, RAILNET_MINOR, RAILNET_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* Handles. None of them is a pointer to anything. */
typedef struct railnetComm *railnetComm_t;
typedef struct railnetWindow *railnetWindow_t;
typedef struct railnetRequest *railnetRequest_t;

/*
 * What all ranks of a new communicator have to know. It holds a secret, by which they prove that they belong together:
 * send it to them by a channel that you trust.
 */
#define RAILNET_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[RAILNET_UNIQUE_ID_BYTES];
} railnetUniqueId;

/* What functions return. There is no 1, which is ncclUnhandledCudaError. */
typedef enum {
    railnetSuccess = 0,
    railnetSystemError = 2,     /* the kernel refuses something */
    railnetInternalError = 3,   /* a bug of Railnet's */
    railnetInvalidArgument = 4, /* one value is wrong */
    railnetInvalidUsage = 5,    /* the values are right and the call is not, or ranks make different calls */
    railnetRemoteError = 6,     /* another rank died, left, aborted, or cannot be reached */
    railnetInProgress = 7,      /* never returned: calls wait, or have a request */
    railnetTimeout = 8,         /* a rank did not come in time */
    railnetNumResults = 9
} railnetResult_t;

/* Types of elements. The last two are not NCCL's. */
typedef enum {
    railnetInt8 = 0,
    railnetChar = 0,
    railnetUint8 = 1,
    railnetInt32 = 2,
    railnetInt = 2,
    railnetUint32 = 3,
    railnetInt64 = 4,
    railnetUint64 = 5,
    railnetFloat16 = 6,
    railnetHalf = 6,
    railnetFloat32 = 7,
    railnetFloat = 7,
    railnetFloat64 = 8,
    railnetDouble = 8,
    railnetBfloat16 = 9,
    railnetFloat8e4m3 = 10,
    railnetFloat8e5m2 = 11,
    railnetInt16 = 12,
    railnetUint16 = 13,
    railnetNumTypes = 14
} railnetDataType_t;

/*
 * Reductions. The bitwise ones are for integers and not NCCL's. railnetRedOpCreatePreMulSum makes others, whose numbers
 * are railnetNumOps and more.
 */
typedef enum {
    railnetSum = 0,
    railnetProd = 1,
    railnetMax = 2,
    railnetMin = 3,
    railnetAvg = 4,
    railnetBand = 5,
    railnetBor = 6,
    railnetBxor = 7,
    railnetNumOps = 8,
    railnetMaxRedOp = 0x7fffffff
} railnetRedOp_t;

/*
 * ---- Versions and errors
 */

/* The version of the library, as RAILNET_VERSION writes it. */
railnetResult_t railnetGetVersion(int *version);

/* What a result means, in a few words. */
const char *railnetGetErrorString(railnetResult_t result);

/*
 * What exactly went wrong last: the function, the ranks whose fault it is, where they are, and what to do. Of a communicator,
 * whichever thread called; with NULL, or a handle that is none any more, of the calling thread. Empty where nothing did.
 * The text is there until this thread calls the function again.
 */
const char *railnetGetLastError(railnetComm_t comm);

/*
 * ---- Communicators
 */

/*
 * Makes an id for one communicator and holds the port that its ranks meet at. Rank 0 has to be in the process that calls
 * this. NCCL_SOCKET_IFNAME and RAILNET_BIND choose the address.
 */
railnetResult_t railnetGetUniqueId(railnetUniqueId *uniqueId);

/* Meets the other ranks that have the same id: all of them call it. */
railnetResult_t railnetCommInitRank(railnetComm_t *comm, int nranks, railnetUniqueId commId, int rank);

/*
 * Meets all ranks that were started together by torchrun, srun, mpirun or `railnet run`, as their variables say: also
 * RAILNET_RANK, RAILNET_WORLD_SIZE and RAILNET_RENDEZVOUS, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT with
 * RAILNET_LAUNCHER=torchrun. Without any of these it is one rank alone.
 */
railnetResult_t railnetCommInitFromEnv(railnetComm_t *comm);

/*
 * Parts a communicator: ranks that give the same color are together in a new one, in the order of key and, where that is
 * the same, of their ranks. Every rank calls it; one whose color is RAILNET_SPLIT_NOCOLOR gets NULL.
 */
#define RAILNET_SPLIT_NOCOLOR (-1)
railnetResult_t railnetCommSplit(railnetComm_t comm, int color, int key, railnetComm_t *newcomm);

/*
 * Makes a communicator of the ranks that are left after a failure: they agree on who is lost, and leave out those of the list,
 * too. Every rank that is left calls it. Numbers close up.
 */
railnetResult_t railnetCommShrink(railnetComm_t comm, const int *excludeRanksList, int excludeRanksCount,
                                  railnetComm_t *newcomm);

/* Makes all calls of all ranks fail, now and later, but for railnetCommShrink. The handle stays. */
railnetResult_t railnetCommRevoke(railnetComm_t comm);

/* Ends what was started and not waited for. After that the communicator takes no more calls. */
railnetResult_t railnetCommFinalize(railnetComm_t comm);

/*
 * Gives a communicator back, after what railnetCommFinalize does. Its windows have to be deregistered before. NULL is
 * nothing. If what was started has failed, that is the result, and the communicator is given back all the same.
 */
railnetResult_t railnetCommDestroy(railnetComm_t comm);

/* Makes calls under way fail, on every rank and in every thread, and gives the communicator back. NULL is nothing. */
railnetResult_t railnetCommAbort(railnetComm_t comm);

/* Whether the communicator is broken, as far as this rank knows: railnetSuccess, or why calls fail from now on. */
railnetResult_t railnetCommGetAsyncError(railnetComm_t comm, railnetResult_t *asyncError);

/* How many ranks it has, and which of them this is. */
railnetResult_t railnetCommCount(const railnetComm_t comm, int *count);
railnetResult_t railnetCommUserRank(const railnetComm_t comm, int *rank);

/*
 * How long a call may stand still before it is an error, in place of RAILNET_TIMEOUT (5 minutes). Communicators that
 * come of this one have the same.
 */
railnetResult_t railnetCommSetTimeout(railnetComm_t comm, uint64_t milliseconds);

/*
 * ---- Collectives
 *
 * Counts are in elements. Buffers have no byte in common, or are in place, as said for each.
 */

/*
 * Makes a sum before which each rank's contribution is multiplied by its scalar, which is read before this returns. It is
 * of this communicator and of data of this type. It may be destroyed as soon as the last call with it has returned.
 */
railnetResult_t railnetRedOpCreatePreMulSum(railnetRedOp_t *op, const void *scalar, railnetDataType_t datatype,
                                            railnetComm_t comm);
railnetResult_t railnetRedOpDestroy(railnetRedOp_t op, railnetComm_t comm);

/* Every rank gets the reduction of all. In place: sendbuff == recvbuff. */
railnetResult_t railnetAllReduce(const void *sendbuff, void *recvbuff, size_t count, railnetDataType_t datatype,
                                 railnetRedOp_t op, railnetComm_t comm, railnetRequest_t *request);

/* Every rank gets what the root has. Only the root needs a sendbuff. In place: sendbuff == recvbuff. */
railnetResult_t railnetBroadcast(const void *sendbuff, void *recvbuff, size_t count, railnetDataType_t datatype,
                                 int root, railnetComm_t comm, railnetRequest_t *request);

/* The root gets the reduction of all. Only the root needs a recvbuff. In place: sendbuff == recvbuff. */
railnetResult_t railnetReduce(const void *sendbuff, void *recvbuff, size_t count, railnetDataType_t datatype,
                              railnetRedOp_t op, int root, railnetComm_t comm, railnetRequest_t *request);

/*
 * Every rank gets sendcount elements of each, in the order of ranks. In place: sendbuff is this rank's block of recvbuff.
 */
railnetResult_t railnetAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, railnetDataType_t datatype,
                                 railnetComm_t comm, railnetRequest_t *request);

/*
 * Each rank gets its block, of recvcount elements, of the reduction of all. In place: recvbuff is this rank's block of
 * sendbuff.
 */
railnetResult_t railnetReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                     railnetDataType_t datatype, railnetRedOp_t op, railnetComm_t comm,
                                     railnetRequest_t *request);

/* Each rank has a block of count elements for each, and gets one from each. Not in place. */
railnetResult_t railnetAllToAll(const void *sendbuff, void *recvbuff, size_t count, railnetDataType_t datatype,
                                railnetComm_t comm, railnetRequest_t *request);

/*
 * The root gets sendcount elements of each, in the order of ranks. Only the root needs a recvbuff. In place: its sendbuff is
 * its block of recvbuff.
 */
railnetResult_t railnetGather(const void *sendbuff, void *recvbuff, size_t sendcount, railnetDataType_t datatype,
                              int root, railnetComm_t comm, railnetRequest_t *request);

/*
 * Each rank gets its block, of recvcount elements, of what the root has. Only the root needs a sendbuff. In place: its recvbuff
 * is its block of sendbuff.
 */
railnetResult_t railnetScatter(const void *sendbuff, void *recvbuff, size_t recvcount, railnetDataType_t datatype,
                               int root, railnetComm_t comm, railnetRequest_t *request);

/* Returns when every rank has called it. */
railnetResult_t railnetBarrier(railnetComm_t comm, railnetRequest_t *request);

/*
 * ---- Point to point, groups and requests
 */

/* Sends to a rank, which receives as many elements of the same type. Between two ranks everything is in order. */
railnetResult_t railnetSend(const void *sendbuff, size_t count, railnetDataType_t datatype, int peer,
                            railnetComm_t comm, railnetRequest_t *request);
railnetResult_t railnetRecv(void *recvbuff, size_t count, railnetDataType_t datatype, int peer, railnetComm_t comm,
                            railnetRequest_t *request);

/*
 * What this thread calls of collectives, sends and receives between the two is started together, so that no two ranks wait
 * for each other; railnetGroupEnd waits for what has no request. Groups may lie in groups: the outermost one counts. What a rank
 * sends to itself it receives in the same group. If a call was wrong, railnetGroupEnd says so and starts nothing. Calls
 * that wait for other ranks in another way are errors in a group.
 */
railnetResult_t railnetGroupStart(void);
railnetResult_t railnetGroupEnd(void);

/* Waits for what was started. The request is NULL after that, whatever came of it; one that is NULL has ended. */
railnetResult_t railnetWait(railnetRequest_t *request);

/* Waits for all of an array. The result is the first error. */
railnetResult_t railnetWaitAll(int count, railnetRequest_t *requests);

/* Whether it has ended: done is 1 and the request NULL then, otherwise done is 0. An error has ended it, too. */
railnetResult_t railnetTest(railnetRequest_t *request, int *done);

/*
 * ---- Windows: memory of every rank that all others may write, read and signal, without a call of its owner
 *
 * A put returns when the data may be changed again. It is at the target when a signal that was sent after it is seen there,
 * or when a railnetFlush after it has returned. To one target everything goes in order. Signals are counted for each
 * pair of ranks and each window.
 */

/*
 * Makes size bytes from buff on this rank's part of a window, from a multiple of 8 on; other ranks may have other sizes. Every
 * rank calls it. With NULL the library allocates memory of zeros that the processes of a host share, which is the fastest there
 * is; railnetWinGetUserPtr says where. The memory is not freed before railnetCommWindowDeregister has succeeded.
 */
railnetResult_t railnetCommWindowRegister(railnetComm_t comm, void *buff, size_t size, railnetWindow_t *win);

/* Ends a window, when all ranks have what they sent each other. Every rank calls it. NULL is nothing. */
railnetResult_t railnetCommWindowDeregister(railnetComm_t comm, railnetWindow_t win);

/* Where this rank's part begins. */
railnetResult_t railnetWinGetUserPtr(railnetComm_t comm, railnetWindow_t win, void **ptr);

/* Writes count elements into the part of a rank, peerWinOffset bytes from its beginning on; then signals. */
railnetResult_t railnetPutSignal(const void *localbuff, size_t count, railnetDataType_t datatype, int peer,
                                 railnetWindow_t peerWin, size_t peerWinOffset, railnetComm_t comm);

/* The same without a signal. */
railnetResult_t railnetPut(const void *localbuff, size_t count, railnetDataType_t datatype, int peer,
                           railnetWindow_t peerWin, size_t peerWinOffset, railnetComm_t comm);

/* Reads count elements from the part of a rank. */
railnetResult_t railnetGet(void *localbuff, size_t count, railnetDataType_t datatype, int peer,
                           railnetWindow_t peerWin, size_t peerWinOffset, railnetComm_t comm);

/* Adds one to a rank's count of signals from this one. What was put there before is seen with it. */
railnetResult_t railnetSignal(int peer, railnetWindow_t peerWin, railnetComm_t comm);

/* Waits until each of these ranks has signalled so many times more than earlier waits have used up. */
typedef struct {
    int opCnt; /* 1 or more */
    int peer;
} railnetWaitSignalDesc_t;
railnetResult_t railnetWaitSignal(int nDesc, const railnetWaitSignalDesc_t *signalDescs, railnetWindow_t win,
                                  railnetComm_t comm);

/* Signals of a rank that have come and that no wait has used up. */
railnetResult_t railnetSignalCount(int peer, railnetWindow_t win, railnetComm_t comm, uint64_t *count);

/* Returns when all that this rank has put and signalled is at its targets. */
railnetResult_t railnetFlush(railnetWindow_t win, railnetComm_t comm);

#ifdef __cplusplus
}
#endif

#endif
