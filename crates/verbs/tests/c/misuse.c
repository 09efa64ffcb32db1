/* Uses libibverbs wrongly, one mistake after the other, and holds every answer against the manual pages. Two queue pairs of this
   process talk to each other where packets are needed. Prints a line for each check that fails; the exit status counts them. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

static int failures, checks;

static void check(int holds, const char *what, int line)
{
	checks++;
	if (holds)
		return;
	failures++;
	printf("line %d: %s (errno %d, %s)\n", line, what, errno, strerror(errno));
	fflush(stdout);
}
#define CHECK(condition) check((condition), #condition, __LINE__)
/* Calls that return the number. */
#define REFUSED(call, number) do { int got_ = (call); errno = got_; check(got_ == (number), #call " is " #number, __LINE__); } while (0)
/* Calls that return a null pointer and set errno. */
#define NO_OBJECT(call, number) do { errno = 0; void *got_ = (call); check(!got_ && errno == (number), #call " is null with " #number, __LINE__); } while (0)

enum { BYTES = 8192, DEPTH = 16 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;

struct side {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
};

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

/* The next completion, within ten seconds. */
static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc = { .status = 255 };
	double end = now() + 10;
	while (now() < end)
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			return wc;
	wc.status = 255;
	return wc;
}

static struct ibv_qp_init_attr attributes_of(struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr) {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
	};
}

static void make_with(struct side *side, struct ibv_cq *cq)
{
	side->cq = cq;
	struct ibv_qp_init_attr init = attributes_of(side->cq);
	side->qp = ibv_create_qp(pd, &init);
	side->memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	side->mr = ibv_reg_mr(pd, side->memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	if (!side->cq || !side->qp || !side->mr) {
		printf("cannot make a queue pair: %s\n", strerror(errno));
		exit(99);
	}
}

static void make(struct side *side)
{
	make_with(side, ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0));
}

static int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int to_rtr(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 2, .rnr_retry = 0, .max_rd_atomic = 1 };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			     IBV_QP_MAX_QP_RD_ATOMIC);
}

static void pair(struct side *a, struct side *b)
{
	CHECK(!to_init(a->qp) && !to_init(b->qp));
	CHECK(!to_rtr(a->qp, b->qp->qp_num) && !to_rtr(b->qp, a->qp->qp_num));
	CHECK(!to_rts(a->qp) && !to_rts(b->qp));
}

static void connect_sides(struct side *a, struct side *b)
{
	make(a);
	make(b);
	pair(a, b);
}

static void unmake(struct side *side)
{
	REFUSED(ibv_destroy_qp(side->qp), 0);
	REFUSED(ibv_dereg_mr(side->mr), 0);
	REFUSED(ibv_destroy_cq(side->cq), 0);
	munmap(side->memory, BYTES);
}

static int write_to(struct side *a, uint64_t address, uint32_t rkey, uint64_t local, uint32_t lkey, uint32_t length)
{
	struct ibv_sge sge = { .addr = local, .length = length, .lkey = lkey };
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = address, .rkey = rkey } }, *bad;
	return ibv_post_send(a->qp, &wr, &bad);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

static void devices_and_ports(void)
{
	struct ibv_port_attr port;
	union ibv_gid other;
	uint16_t pkey;
	CHECK(ibv_query_port(context, 1, &port) == 0);
	REFUSED(ibv_query_port(context, 2, &port), EINVAL);
	REFUSED(ibv_query_port(context, 0, &port), EINVAL);
	CHECK(ibv_query_gid(context, 1, port.gid_tbl_len, &other) != 0);
	CHECK(ibv_query_pkey(context, 1, port.pkey_tbl_len, &pkey) != 0);
	NO_OBJECT(ibv_open_device(NULL), EINVAL);
	NO_OBJECT(ibv_alloc_pd(NULL), EINVAL);
	struct ibv_async_event event;
	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
	errno = 0;
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
}

static void memory_regions(void)
{
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *constant = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *gone = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(gone, BYTES);
	NO_OBJECT(ibv_reg_mr(pd, gone, BYTES, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	NO_OBJECT(ibv_reg_mr(pd, constant, BYTES, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	NO_OBJECT(ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	NO_OBJECT(ibv_reg_mr(NULL, memory, BYTES, 0), EINVAL);
	struct ibv_mr *readable = ibv_reg_mr(pd, constant, BYTES, IBV_ACCESS_REMOTE_READ);
	CHECK(readable != NULL);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_dereg_mr(readable), 0);
	struct ibv_mr *named = ibv_reg_mr_iova2(pd, memory, BYTES, 0x1000, IBV_ACCESS_LOCAL_WRITE);
	CHECK(named != NULL);
	REFUSED(ibv_dereg_mr(named), 0);
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0) && errno == EOPNOTSUPP);
	/* A region changes under its pointer and its keys, or stays as it is. */
	struct ibv_mr *changing = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	uint32_t lkey = changing->lkey, rkey = changing->rkey;
	CHECK(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, BYTES / 2, 0) == 0);
	CHECK(changing->length == BYTES / 2 && changing->lkey == lkey && changing->rkey == rkey);
	struct ibv_pd *other = ibv_alloc_pd(context);
	CHECK(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) == 0);
	CHECK(changing->pd == other && changing->lkey == lkey);
	REFUSED(ibv_dealloc_pd(other), EBUSY);
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	CHECK(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, all) == 0);
	errno = 0;
	CHECK(ibv_rereg_mr(changing, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	errno = 0;
	CHECK(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) < 0 && errno == EINVAL);
	errno = 0;
	CHECK(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, gone, BYTES, 0) < 0 && errno == EFAULT);
	CHECK(changing->addr == memory && changing->length == BYTES / 2);
	REFUSED(ibv_dereg_mr(changing), 0);
	REFUSED(ibv_dealloc_pd(other), 0);
	/* Objects of other processes cannot be had here. */
	NO_OBJECT(ibv_import_device(0), EOPNOTSUPP);
	NO_OBJECT(ibv_import_pd(context, 1), EOPNOTSUPP);
	NO_OBJECT(ibv_import_mr(pd, 1), EOPNOTSUPP);
	NO_OBJECT(ibv_import_dm(context, 1), EOPNOTSUPP);
	munmap(memory, BYTES);
	munmap(constant, BYTES);
}

static void queues(void)
{
	NO_OBJECT(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 16, NULL, NULL, -1), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 16, NULL, NULL, context->num_comp_vectors), EINVAL);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, (void *)0x55, channel, 0);
	CHECK(cq != NULL);
	REFUSED(ibv_destroy_comp_channel(channel), EBUSY);
	struct ibv_cq *of_event;
	void *cookie;
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	errno = 0;
	CHECK(ibv_get_cq_event(channel, &of_event, &cookie) == -1 && errno == EAGAIN);
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	struct ibv_qp_init_attr init = attributes_of(cq);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp != NULL);
	REFUSED(ibv_destroy_cq(cq), EBUSY);
	REFUSED(ibv_destroy_qp(qp), 0);
	init = attributes_of(cq);
	init.cap.max_send_wr = 1 << 30;
	CHECK(!ibv_create_qp(pd, &init) && (errno == EINVAL || errno == ENOMEM));
	init = attributes_of(cq);
	init.cap.max_send_sge = 1 << 20;
	CHECK(!ibv_create_qp(pd, &init) && (errno == EINVAL || errno == ENOMEM));
	init = attributes_of(cq);
	init.qp_type = IBV_QPT_RAW_PACKET;
	NO_OBJECT(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init = attributes_of(cq);
	init.qp_type = IBV_QPT_XRC_SEND;
	NO_OBJECT(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init = attributes_of(NULL);
	NO_OBJECT(ibv_create_qp(pd, &init), EINVAL);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	init = attributes_of(cq);
	init.srq = srq;
	qp = ibv_create_qp(pd, &init);
	CHECK(srq && qp);
	REFUSED(ibv_destroy_srq(srq), EBUSY);
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad = NULL;
	REFUSED(ibv_post_recv(qp, &receive, &bad), EINVAL);
	CHECK(bad == &receive);
	for (int index = 0; index < 4; index++)
		REFUSED(ibv_post_srq_recv(srq, &receive, &bad), 0);
	bad = NULL;
	REFUSED(ibv_post_srq_recv(srq, &receive, &bad), ENOMEM);
	CHECK(bad == &receive);
	REFUSED(ibv_destroy_qp(qp), 0);
	REFUSED(ibv_destroy_srq(srq), 0);
	REFUSED(ibv_destroy_cq(cq), 0);
	REFUSED(ibv_destroy_comp_channel(channel), 0);
}

static void transitions(void)
{
	struct side side;
	make(&side);
	struct ibv_sge sge = { .addr = (uintptr_t)side.memory, .length = 8, .lkey = side.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad = NULL;
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive = NULL;
	REFUSED(ibv_post_send(side.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	REFUSED(ibv_post_recv(side.qp, &receive, &bad_receive), EINVAL);
	CHECK(bad_receive == &receive);
	REFUSED(to_rts(side.qp), EINVAL);
	REFUSED(to_rtr(side.qp, 1), EINVAL);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 2 };
	int init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	REFUSED(ibv_modify_qp(side.qp, &attr, init_mask), EINVAL);
	attr.port_num = 1;
	attr.pkey_index = 9;
	REFUSED(ibv_modify_qp(side.qp, &attr, init_mask), EINVAL);
	attr.pkey_index = 0;
	REFUSED(ibv_modify_qp(side.qp, &attr, init_mask & ~IBV_QP_PORT), EINVAL);
	REFUSED(to_init(side.qp), 0);
	REFUSED(ibv_post_send(side.qp, &wr, &bad), EINVAL);
	REFUSED(ibv_post_recv(side.qp, &receive, &bad_receive), 0);
	REFUSED(to_rts(side.qp), EINVAL);
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR };
	REFUSED(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE), EINVAL);
	CHECK(state_of(side.qp) == IBV_QPS_INIT);
	/* The error state flushes what waits. */
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_ERR };
	REFUSED(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE), 0);
	CHECK(completion(side.cq).status == IBV_WC_WR_FLUSH_ERR);
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RESET };
	REFUSED(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE), 0);
	CHECK(state_of(side.qp) == IBV_QPS_RESET);
	unmake(&side);
}

static void work_requests(void)
{
	struct side a, b;
	connect_sides(&a, &b);
	struct ibv_sge sges[3];
	for (int index = 0; index < 3; index++)
		sges[index] = (struct ibv_sge) { .addr = (uintptr_t)a.memory, .length = 8, .lkey = a.mr->lkey };
	struct ibv_send_wr second = { .wr_id = 2, .sg_list = sges, .num_sge = 3, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = (uintptr_t)b.memory, .rkey = b.mr->rkey } };
	struct ibv_send_wr first = second, *bad = NULL;
	first.wr_id = 1;
	first.num_sge = 1;
	first.next = &second;
	/* The first is posted, the second has too many pieces. */
	REFUSED(ibv_post_send(a.qp, &first, &bad), EINVAL);
	CHECK(bad == &second);
	struct ibv_wc wc = completion(a.cq);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
	first.next = NULL;
	first.send_flags = IBV_SEND_INLINE;
	sges[0].length = 1000;
	CHECK(ibv_post_send(a.qp, &first, &bad) != 0 && bad == &first);
	first.send_flags = 0;
	first.opcode = 99;
	REFUSED(ibv_post_send(a.qp, &first, &bad), EINVAL);
	/* A full receive queue. */
	struct ibv_recv_wr receive = { .sg_list = sges, .num_sge = 1 }, *bad_receive = NULL;
	int posted = 0;
	while (posted < 10000 && !ibv_post_recv(a.qp, &receive, &bad_receive))
		posted++;
	CHECK(posted >= DEPTH && posted < 10000 && bad_receive == &receive);
	unmake(&a);
	unmake(&b);
}

static void keys(void)
{
	struct side a, b;
	connect_sides(&a, &b);
	/* A local key of nothing: an error of this side, and what follows is flushed. */
	CHECK(!write_to(&a, (uintptr_t)b.memory, b.mr->rkey, (uintptr_t)a.memory, a.mr->lkey ^ 0x5500, 8));
	CHECK(completion(a.cq).status == IBV_WC_LOC_PROT_ERR);
	CHECK(state_of(a.qp) == IBV_QPS_ERR);
	CHECK(!write_to(&a, (uintptr_t)b.memory, b.mr->rkey, (uintptr_t)a.memory, a.mr->lkey, 8));
	CHECK(completion(a.cq).status == IBV_WC_WR_FLUSH_ERR);
	unmake(&a);
	unmake(&b);
	/* A remote key of nothing, and a range that ends behind the region. */
	for (int beyond = 0; beyond < 2; beyond++) {
		connect_sides(&a, &b);
		uint32_t rkey = beyond ? b.mr->rkey : b.mr->rkey ^ 0x5500;
		uintptr_t target = (uintptr_t)b.memory + (beyond ? BYTES - 4 : 0);
		CHECK(!write_to(&a, target, rkey, (uintptr_t)a.memory, a.mr->lkey, 8));
		CHECK(completion(a.cq).status == IBV_WC_REM_ACCESS_ERR);
		CHECK(state_of(b.qp) == IBV_QPS_ERR);
		struct ibv_async_event event = { .event_type = -1 };
		double end = now() + 10;
		while (ibv_get_async_event(context, &event) && now() < end)
			;
		CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b.qp);
		ibv_ack_async_event(&event);
		unmake(&a);
		unmake(&b);
	}
}

static void memory_that_goes_away(void)
{
	struct side a, b;
	connect_sides(&a, &b);
	munmap(a.memory, BYTES);
	CHECK(!write_to(&a, (uintptr_t)b.memory, b.mr->rkey, (uintptr_t)a.memory, a.mr->lkey, 8));
	CHECK(completion(a.cq).status == IBV_WC_LOC_PROT_ERR);
	unmake(&a);
	unmake(&b);
	connect_sides(&a, &b);
	munmap(b.memory, BYTES);
	CHECK(!write_to(&a, (uintptr_t)b.memory, b.mr->rkey, (uintptr_t)a.memory, a.mr->lkey, 8));
	enum ibv_wc_status status = completion(a.cq).status;
	CHECK(status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_OP_ERR);
	unmake(&a);
	unmake(&b);
}

static void receives(void)
{
	struct side a, b;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	/* Nothing posted, and no patience. */
	connect_sides(&a, &b);
	sge = (struct ibv_sge) { .addr = (uintptr_t)a.memory, .length = 64, .lkey = a.mr->lkey };
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(completion(a.cq).status == IBV_WC_RNR_RETRY_EXC_ERR);
	unmake(&a);
	unmake(&b);
	/* A buffer that is too short. */
	connect_sides(&a, &b);
	struct ibv_sge shorter = { .addr = (uintptr_t)b.memory, .length = 16, .lkey = b.mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &shorter, .num_sge = 1 }, *bad_receive;
	CHECK(!ibv_post_recv(b.qp, &receive, &bad_receive));
	sge = (struct ibv_sge) { .addr = (uintptr_t)a.memory, .length = 64, .lkey = a.mr->lkey };
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(completion(a.cq).status == IBV_WC_REM_INV_REQ_ERR);
	CHECK(completion(b.cq).status == IBV_WC_LOC_LEN_ERR);
	unmake(&a);
	unmake(&b);
	/* A peer that is not there. */
	make(&a);
	CHECK(!to_init(a.qp) && !to_rtr(a.qp, a.qp->qp_num ^ 1) && !to_rts(a.qp));
	sge = (struct ibv_sge) { .addr = (uintptr_t)a.memory, .length = 64, .lkey = a.mr->lkey };
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(completion(a.cq).status == IBV_WC_RETRY_EXC_ERR);
	unmake(&a);
}

static void windows_and_extensions(void)
{
	NO_OBJECT(ibv_alloc_mw(pd, IBV_MW_TYPE_1), EOPNOTSUPP);
	struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(window != NULL);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_dealloc_mw(window), 0);
	struct ibv_alloc_dm_attr memory = { .length = 64 };
	NO_OBJECT(ibv_alloc_dm(context, &memory), EOPNOTSUPP);
	struct ibv_xrcd_init_attr domain = { 0 };
	CHECK(!ibv_open_xrcd(context, &domain) && (errno == EOPNOTSUPP || errno == ENOSYS));
	struct ibv_ah_attr address = { .port_num = 1, .is_global = 0 };
	CHECK(!ibv_create_ah(pd, &address) && errno == EINVAL);
}

/* Several threads at once on one queue pair. */
enum { THREADS = 4, ROUNDS = 200 };
static struct side shared_a, shared_b;
static int posted_by_threads, completed;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void *hammer(void *unused)
{
	(void)unused;
	for (int round = 0; round < ROUNDS;) {
		int outcome = write_to(&shared_a, (uintptr_t)shared_b.memory, shared_b.mr->rkey, (uintptr_t)shared_a.memory,
				       shared_a.mr->lkey, 512);
		struct ibv_wc wc;
		int found = ibv_poll_cq(shared_a.cq, 1, &wc);
		pthread_mutex_lock(&counting);
		posted_by_threads += outcome == 0;
		completed += found == 1 && wc.status == IBV_WC_SUCCESS;
		pthread_mutex_unlock(&counting);
		round += outcome == 0;
	}
	return NULL;
}

static void threads(void)
{
	connect_sides(&shared_a, &shared_b);
	pthread_t workers[THREADS];
	for (int index = 0; index < THREADS; index++)
		pthread_create(&workers[index], NULL, hammer, NULL);
	for (int index = 0; index < THREADS; index++)
		pthread_join(workers[index], NULL);
	while (completed < posted_by_threads && completion(shared_a.cq).status == IBV_WC_SUCCESS)
		completed++;
	CHECK(posted_by_threads == THREADS * ROUNDS && completed == posted_by_threads);
	unmake(&shared_a);
	unmake(&shared_b);
}

/* Two threads take completions of one queue with ibv_start_poll: each completion comes to one of them, whole. */
enum { POLLED = 400 };
static struct ibv_cq_ex *shared_queue;
static int times_seen[POLLED], mixed;

static void *take_extended(void *unused)
{
	(void)unused;
	struct ibv_poll_cq_attr attr = { 0 };
	double end = now() + 20;
	for (int total = 0; total < POLLED && now() < end;) {
		if (!ibv_start_poll(shared_queue, &attr)) {
			uint64_t id = shared_queue->wr_id;
			sched_yield();
			int opcode = ibv_wc_read_opcode(shared_queue);
			uint32_t length = ibv_wc_read_byte_len(shared_queue);
			pthread_mutex_lock(&counting);
			/* READs have lengths of their own. */
			mixed += opcode != IBV_WC_RDMA_READ || length != id + 1 || shared_queue->wr_id != id;
			if (id < POLLED)
				times_seen[id]++;
			pthread_mutex_unlock(&counting);
			ibv_end_poll(shared_queue);
		}
		pthread_mutex_lock(&counting);
		total = 0;
		for (int index = 0; index < POLLED; index++)
			total += times_seen[index] > 0;
		pthread_mutex_unlock(&counting);
	}
	return NULL;
}

static void extended_polls(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = POLLED, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct side a, b;
	shared_queue = ibv_create_cq_ex(context, &init);
	CHECK(shared_queue != NULL);
	make_with(&a, ibv_cq_ex_to_cq(shared_queue));
	make(&b);
	pair(&a, &b);
	pthread_t workers[2];
	for (int index = 0; index < 2; index++)
		pthread_create(&workers[index], NULL, take_extended, NULL);
	for (int index = 0; index < POLLED;) {
		struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = index + 1, .lkey = a.mr->lkey };
		struct ibv_send_wr wr = { .wr_id = index, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)b.memory, .rkey = b.mr->rkey } }, *bad;
		index += !ibv_post_send(a.qp, &wr, &bad);
	}
	for (int index = 0; index < 2; index++)
		pthread_join(workers[index], NULL);
	int once = 0;
	for (int index = 0; index < POLLED; index++)
		once += times_seen[index] == 1;
	CHECK(once == POLLED);
	CHECK(mixed == 0);
	unmake(&a);
	unmake(&b);
}

/* A child of this process opens the device for itself. */
static void children(struct ibv_device *device)
{
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		context = ibv_open_device(device);
		pd = context ? ibv_alloc_pd(context) : NULL;
		if (!pd)
			_exit(98);
		failures = 0;
		struct side a, b;
		connect_sides(&a, &b);
		CHECK(!write_to(&a, (uintptr_t)b.memory, b.mr->rkey, (uintptr_t)a.memory, a.mr->lkey, 8));
		CHECK(completion(a.cq).status == IBV_WC_SUCCESS);
		unmake(&a);
		unmake(&b);
		fflush(stdout);
		_exit(failures);
	}
	int status = -1;
	waitpid(child, &status, 0);
	CHECK(status == 0);
	/* The parent's own goes on. */
	struct side a, b;
	connect_sides(&a, &b);
	CHECK(!write_to(&a, (uintptr_t)b.memory, b.mr->rkey, (uintptr_t)a.memory, a.mr->lkey, 8));
	CHECK(completion(a.cq).status == IBV_WC_SUCCESS);
	unmake(&a);
	unmake(&b);
}

int main(void)
{
	int count = 0;
	struct ibv_device **devices = ibv_get_device_list(&count);
	if (!devices || !count || !(context = ibv_open_device(devices[0])) || !(pd = ibv_alloc_pd(context))) {
		printf("no device: %s\n", strerror(errno));
		return 99;
	}
	ibv_query_gid(context, 1, 0, &gid);
	devices_and_ports();
	memory_regions();
	queues();
	transitions();
	work_requests();
	keys();
	memory_that_goes_away();
	receives();
	windows_and_extensions();
	threads();
	extended_polls();
	children(devices[0]);
	REFUSED(ibv_dealloc_pd(pd), 0);
	REFUSED(ibv_close_device(context), 0);
	ibv_free_device_list(devices);
	printf("%d checks, %d failed\n", checks, failures);
	return failures > 90 ? 90 : failures;
}
