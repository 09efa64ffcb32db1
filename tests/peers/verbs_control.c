/* What the control path of a verbs library costs: registering memory, making and connecting queue pairs, one and a thousand of them.
 *
 *   cc -O2 -o verbs_control verbs_control.c -libverbs && railnet rdma exec -- ./verbs_control [QUEUE_PAIRS]
 *
 * Each row has the median; queue pairs are connected in pairs on one port, and a message goes over the first and the last pair.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition, what)                                   \
    do {                                                         \
        if (!(condition)) {                                      \
            perror(what);                                        \
            exit(1);                                             \
        }                                                        \
    } while (0)

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int by_value(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static double median(double *values, int count) {
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static void registrations(struct ibv_pd *pd) {
    static const size_t sizes[] = {4096, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30};
    for (size_t index = 0; index < sizeof sizes / sizeof *sizes; index++) {
        double makes[9], frees[9];
        char *memory = malloc(sizes[index]);
        CHECK(memory, "malloc");
        memset(memory, 1, sizes[index]);
        for (int round = 0; round < 9; round++) {
            double start = now_us();
            struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizes[index], IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
            double made = now_us();
            CHECK(mr, "ibv_reg_mr");
            CHECK(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
            makes[round] = made - start;
            frees[round] = now_us() - made;
        }
        printf("register %8zu KiB %39.1f us, deregister %.1f us\n", sizes[index] >> 10, median(makes, 9), median(frees, 9));
        free(memory);
    }
}

static void to_init(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
}

static void to_ready(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid, enum ibv_mtu mtu) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = peer, .rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 0, .hop_limit = 64}},
    };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 7, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                        IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* A message of 8 bytes from one queue pair to another: the time until its completion. */
static double message(struct ibv_qp *from, struct ibv_cq *cq, struct ibv_mr *mr, char *memory) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
    struct ibv_send_wr *bad, work = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    work.wr.rdma.remote_addr = (uintptr_t)memory + 64;
    work.wr.rdma.rkey = mr->rkey;
    double start = now_us();
    CHECK(!ibv_post_send(from, &work, &bad), "ibv_post_send");
    struct ibv_wc wc;
    int found;
    while ((found = ibv_poll_cq(cq, 1, &wc)) == 0) {}
    CHECK(found == 1 && wc.status == IBV_WC_SUCCESS, "the message");
    return now_us() - start;
}

static void queue_pairs(struct ibv_context *context, struct ibv_pd *pd, int count) {
    struct ibv_qp **qps = calloc(count, sizeof *qps);
    double *makes = calloc(count, sizeof *makes), *connects = calloc(count, sizeof *connects), messages[501];
    char *memory = calloc(1, 4096);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_cq *cq = ibv_create_cq(context, 4096, NULL, NULL, 0);
    struct ibv_port_attr port;
    union ibv_gid gid;
    CHECK(mr && cq && !ibv_query_port(context, 1, &port) && !ibv_query_gid(context, 1, 0, &gid), "the port");
    double start = now_us();
    for (int index = 0; index < count; index++) {
        struct ibv_qp_init_attr init = {
            .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1}};
        double began = now_us();
        qps[index] = ibv_create_qp(pd, &init);
        CHECK(qps[index], "ibv_create_qp");
        to_init(qps[index]);
        makes[index] = now_us() - began;
    }
    for (int index = 0; index < count; index++) {
        double began = now_us();
        to_ready(qps[index], qps[index ^ 1]->qp_num, gid, port.active_mtu);
        connects[index] = now_us() - began;
    }
    double all = now_us() - start;
    for (int round = 0; round < 501; round++) messages[round] = message(qps[round % 2 ? count - 1 : 0], cq, mr, memory);
    printf("%4d queue pairs: create, to INIT %28.1f us each\n", count, median(makes, count));
    printf("%4d queue pairs: connect, to RTS %28.1f us each, %.1f ms for all of them\n", count, median(connects, count), all / 1e3);
    printf("%4d queue pairs: WRITE of 8 B until its completion %10.1f us\n", count, median(messages, 501));
    for (int index = 0; index < count; index++) CHECK(!ibv_destroy_qp(qps[index]), "ibv_destroy_qp");
    CHECK(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr), "destroying");
    free(memory), free(qps), free(makes), free(connects);
}

int main(int count, char **words) {
    int most = count > 1 ? atoi(words[1]) : 1000;
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices && devices[0], "no device");
    double start = now_us();
    struct ibv_context *context = ibv_open_device(devices[0]);
    CHECK(context, "ibv_open_device");
    printf("open a device %48.1f us\n", now_us() - start);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK(pd, "ibv_alloc_pd");
    registrations(pd);
    for (int number = 2; number < most; number *= 10) queue_pairs(context, pd, number);
    queue_pairs(context, pd, most / 2 * 2);
    CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context), "closing");
    return 0;
}
