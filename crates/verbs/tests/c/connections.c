/* Everything that can be done wrong with connection management in one process, and what the manual pages say of it. Each line
   that fails says so; the program's exit status is the number of them. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include <rdma/rdma_cma.h>

static int failures;

#define REFUSES(call, number)                                                                                                \
	do {                                                                                                                 \
		errno = 0;                                                                                                   \
		int returned = (call);                                                                                       \
		if (returned != -1 || errno != (number)) {                                                                   \
			printf("line %d: %s: %d, %s instead of %s\n", __LINE__, #call, returned, strerror(errno),            \
			       strerror(number));                                                                            \
			failures++;                                                                                          \
		}                                                                                                            \
	} while (0)

#define HOLDS(condition)                                                                                                     \
	do {                                                                                                                 \
		if (!(condition)) {                                                                                          \
			printf("line %d: not so: %s (%s)\n", __LINE__, #condition, strerror(errno));                         \
			failures++;                                                                                          \
		}                                                                                                            \
	} while (0)

#define WORKS(call) HOLDS((call) == 0)

static struct sockaddr_in address(const char *text, int port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };
	unsigned a, b, c, d;
	sscanf(text, "%u.%u.%u.%u", &a, &b, &c, &d);
	in.sin_addr.s_addr = htonl(a << 24 | b << 16 | c << 8 | d);
	return in;
}

/* The next event, which must be of this kind; a descriptor that stays quiet for 20 s ends the program. */
static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct pollfd waits = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event = NULL;
	if (poll(&waits, 1, 20000) != 1 || rdma_get_cm_event(channel, &event)) {
		printf("no event where %s should come\n", rdma_event_str(kind));
		exit(100);
	}
	if (event->event != kind) {
		printf("%s (status %d) where %s should come\n", rdma_event_str(event->event), event->status,
		       rdma_event_str(kind));
		exit(101);
	}
	return event;
}

static void pass(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	WORKS(rdma_ack_cm_event(next(channel, kind)));
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, int port)
{
	struct sockaddr_in peer = address("127.0.0.1", port);
	struct rdma_cm_id *id;
	WORKS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	REFUSES(rdma_resolve_route(id, 1000), EINVAL);
	WORKS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&peer, 1000));
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	REFUSES(rdma_connect(id, NULL), EINVAL);
	WORKS(rdma_resolve_route(id, 1000));
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	REFUSES(rdma_resolve_addr(id, NULL, (struct sockaddr *)&peer, 1000), EINVAL);
	return id;
}

static int make_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	return rdma_create_qp(id, NULL, &init);
}

static void wrong_states(struct rdma_event_channel *channel)
{
	struct sockaddr_in any = address("0.0.0.0", 0), own = address("127.0.0.1", 0), foreign = address("192.0.2.1", 1);
	struct sockaddr_un local = { .sun_family = AF_UNIX };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *second;
	int mask;

	REFUSES(rdma_create_id(channel, &id, NULL, (enum rdma_port_space)77), EINVAL);
	REFUSES(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	REFUSES(rdma_get_cm_event(channel, &event), EAGAIN);
	REFUSES(rdma_get_cm_event(NULL, &event), EINVAL);
	REFUSES(rdma_ack_cm_event(NULL), EINVAL);
	REFUSES(rdma_destroy_id(NULL), EINVAL);
	rdma_destroy_event_channel(NULL);
	rdma_destroy_ep(NULL);
	rdma_destroy_qp(NULL);

	WORKS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	REFUSES(rdma_connect(id, NULL), EINVAL);
	REFUSES(rdma_accept(id, NULL), EINVAL);
	REFUSES(rdma_reject(id, NULL, 0), EINVAL);
	REFUSES(rdma_disconnect(id), EINVAL);
	REFUSES(rdma_establish(id), EINVAL);
	REFUSES(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	REFUSES(make_queue_pair(id), EINVAL);
	REFUSES(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	REFUSES(rdma_get_request(id, &second), EINVAL);
	REFUSES(rdma_bind_addr(id, NULL), EINVAL);
	REFUSES(rdma_bind_addr(id, (struct sockaddr *)&local), EAFNOSUPPORT);
	REFUSES(rdma_bind_addr(id, (struct sockaddr *)&foreign), EADDRNOTAVAIL);
	WORKS(rdma_bind_addr(id, (struct sockaddr *)&any));
	HOLDS(rdma_get_src_port(id) != 0);
	HOLDS(rdma_get_dst_port(id) == 0);
	REFUSES(rdma_bind_addr(id, (struct sockaddr *)&own), EINVAL);

	own.sin_port = rdma_get_src_port(id);
	WORKS(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP));
	REFUSES(rdma_bind_addr(second, (struct sockaddr *)&own), EADDRINUSE);
	WORKS(rdma_destroy_id(second));
	WORKS(rdma_listen(id, 5));
	REFUSES(rdma_listen(id, 5), EINVAL);
	REFUSES(rdma_connect(id, NULL), EINVAL);
	WORKS(rdma_create_id(channel, &second, NULL, RDMA_PS_UDP));
	/* Another port space is another port. */
	WORKS(rdma_bind_addr(second, (struct sockaddr *)&own));
	WORKS(rdma_destroy_id(second));
	WORKS(rdma_destroy_id(id));
	/* The port is free again. */
	WORKS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	WORKS(rdma_bind_addr(id, (struct sockaddr *)&own));
	WORKS(rdma_destroy_id(id));
}

static void options(struct rdma_event_channel *channel)
{
	struct sockaddr_in group = address("239.1.1.1", 0);
	struct rdma_cm_id *id;
	uint8_t byte = 32;
	int flag = 1;

	WORKS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	WORKS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, sizeof byte));
	REFUSES(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &flag, sizeof flag), EINVAL);
	REFUSES(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
	WORKS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &flag, sizeof flag));
	REFUSES(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, sizeof byte), EINVAL);
	REFUSES(rdma_set_option(id, RDMA_OPTION_ID, 99, &byte, sizeof byte), ENOSYS);
	REFUSES(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &byte, sizeof byte), EOPNOTSUPP);
	REFUSES(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), EOPNOTSUPP);
	REFUSES(rdma_leave_multicast(id, (struct sockaddr *)&group), EOPNOTSUPP);
	WORKS(rdma_destroy_id(id));
}

static void *acknowledge(void *event)
{
	rdma_ack_cm_event(event);
	return NULL;
}

/* Two ends in one process, each with a channel. */
static void connections(struct rdma_event_channel *active, struct rdma_event_channel *passive)
{
	struct sockaddr_in any = address("0.0.0.0", 0);
	struct rdma_cm_id *listener, *id, *accepted;
	struct rdma_cm_event *event;
	char data[256];
	pthread_t thread;

	memset(data, 'x', sizeof data);
	WORKS(rdma_create_id(passive, &listener, "context", RDMA_PS_TCP));
	WORKS(rdma_bind_addr(listener, (struct sockaddr *)&any));
	WORKS(rdma_listen(listener, 0));
	int port = ntohs(rdma_get_src_port(listener));

	/* Too much private data, too many READs, no queue pair. */
	id = resolved(active, port);
	struct rdma_conn_param param = { .private_data = data, .private_data_len = 57, .qp_num = 17 };
	REFUSES(rdma_connect(id, NULL), EINVAL);
	REFUSES(rdma_connect(id, &param), EINVAL);
	param.private_data_len = 56;
	param.initiator_depth = 200;
	REFUSES(rdma_connect(id, &param), EINVAL);
	param.initiator_depth = 3;
	param.responder_resources = 4;
	param.retry_count = 5;
	param.rnr_retry_count = 6;

	/* Refused with reasons. */
	WORKS(make_queue_pair(id));
	REFUSES(make_queue_pair(id), EINVAL);
	WORKS(rdma_connect(id, &param));
	REFUSES(rdma_connect(id, &param), EINVAL);
	event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	HOLDS(event->listen_id == listener && event->id != listener && !strcmp(event->id->context, "context"));
	HOLDS(event->param.conn.private_data_len == 56 && !memcmp(event->param.conn.private_data, data, 56));
	HOLDS(event->param.conn.responder_resources == 3 && event->param.conn.initiator_depth == 4);
	HOLDS(event->param.conn.retry_count == 5 && event->param.conn.rnr_retry_count == 6);
	HOLDS(event->id->verbs == id->verbs && event->id->port_num == 1);
	HOLDS(rdma_get_dst_port(event->id) == rdma_get_src_port(id));
	accepted = event->id;
	REFUSES(rdma_reject(accepted, data, 149), EINVAL);
	WORKS(rdma_reject(accepted, data, 100));
	REFUSES(rdma_reject(accepted, data, 100), EINVAL);
	REFUSES(rdma_accept(accepted, &param), EINVAL);
	WORKS(rdma_ack_cm_event(event));
	WORKS(rdma_destroy_id(accepted));
	event = next(active, RDMA_CM_EVENT_REJECTED);
	HOLDS(event->status == 28 && event->param.conn.private_data_len == 148);
	HOLDS(!memcmp(event->param.conn.private_data, data, 100));
	WORKS(rdma_ack_cm_event(event));
	rdma_destroy_qp(id);
	WORKS(rdma_destroy_id(id));

	/* Accepted, and ended by the other side. */
	id = resolved(active, port);
	WORKS(make_queue_pair(id));
	WORKS(rdma_connect(id, &param));
	event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	accepted = event->id;
	WORKS(make_queue_pair(accepted));
	param.private_data_len = 200;
	REFUSES(rdma_accept(accepted, &param), EINVAL);
	rdma_destroy_qp(accepted);
	WORKS(make_queue_pair(accepted));
	param.private_data_len = 196;
	WORKS(rdma_accept(accepted, &param));
	WORKS(rdma_ack_cm_event(event));
	event = next(active, RDMA_CM_EVENT_ESTABLISHED);
	HOLDS(event->param.conn.private_data_len == 196 && event->param.conn.qp_num == accepted->qp->qp_num);
	pass(passive, RDMA_CM_EVENT_ESTABLISHED);
	/* An identifier is not destroyed before its events are acknowledged. */
	pthread_create(&thread, NULL, acknowledge, event);
	REFUSES(rdma_reject(accepted, NULL, 0), EINVAL);
	REFUSES(rdma_establish(accepted), EINVAL);
	WORKS(rdma_migrate_id(accepted, active));
	WORKS(rdma_disconnect(id));
	WORKS(rdma_disconnect(id));
	pass(active, RDMA_CM_EVENT_DISCONNECTED);
	pass(active, RDMA_CM_EVENT_DISCONNECTED);
	WORKS(rdma_disconnect(accepted));
	rdma_destroy_qp(id);
	WORKS(rdma_destroy_id(id));
	pthread_join(thread, NULL);
	rdma_destroy_qp(accepted);
	WORKS(rdma_destroy_id(accepted));

	/* A listener that goes takes the requests along that wait for it. */
	id = resolved(active, port);
	WORKS(make_queue_pair(id));
	param.private_data_len = 0;
	WORKS(rdma_connect(id, &param));
	struct pollfd waits = { .fd = passive->fd, .events = POLLIN };
	HOLDS(poll(&waits, 1, 20000) == 1);
	WORKS(rdma_destroy_id(listener));
	event = next(active, RDMA_CM_EVENT_REJECTED);
	WORKS(rdma_ack_cm_event(event));
	rdma_destroy_qp(id);
	WORKS(rdma_destroy_id(id));

	/* The port has no listener any more. */
	id = resolved(active, port);
	WORKS(make_queue_pair(id));
	WORKS(rdma_connect(id, &param));
	event = next(active, RDMA_CM_EVENT_REJECTED);
	HOLDS(event->status == 8);
	WORKS(rdma_ack_cm_event(event));
	rdma_destroy_qp(id);
	WORKS(rdma_destroy_id(id));
}

int main(void)
{
	struct rdma_event_channel *active = rdma_create_event_channel(), *passive = rdma_create_event_channel();
	HOLDS(active && passive);
	fcntl(active->fd, F_SETFL, fcntl(active->fd, F_GETFL) | O_NONBLOCK);
	wrong_states(active);
	options(active);
	connections(active, passive);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
	printf("%d failures\n", failures);
	return failures;
}
