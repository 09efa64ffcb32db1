/* A server of RDMA-CM whose child does nothing, and a client that waits for the server's death.
   server PORT: listens, forks, accepts one connection, and stays. The child sleeps until its standard input ends.
   client PORT: connects, says so, and waits until the connection is ended.
   refused PORT: connects, and must be refused. */
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#define WORKS(call)                                                          \
	do {                                                                 \
		if (call) {                                                  \
			printf("line %d: %s: %m\n", __LINE__, #call);        \
			exit(1);                                             \
		}                                                            \
	} while (0)

static struct rdma_event_channel *channel;

static struct rdma_cm_id *next(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	WORKS(rdma_get_cm_event(channel, &event));
	if (event->event != kind) {
		printf("%s (status %d) where %s should come\n", rdma_event_str(event->event), event->status,
		       rdma_event_str(kind));
		exit(2);
	}
	struct rdma_cm_id *id = event->id;
	WORKS(rdma_ack_cm_event(event));
	return id;
}

static void make_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	WORKS(rdma_create_qp(id, NULL, &init));
}

static int serve(struct sockaddr_in *address)
{
	struct rdma_cm_id *listener;
	struct rdma_conn_param param = { .retry_count = 7 };
	WORKS(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	WORKS(rdma_bind_addr(listener, (struct sockaddr *)address));
	WORKS(rdma_listen(listener, 4));
	pid_t child = fork();
	if (!child) {
		char byte;
		while (read(STDIN_FILENO, &byte, 1) > 0)
			;
		_exit(0);
	}
	printf("listening\n");
	struct rdma_cm_id *id = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	make_queue_pair(id);
	WORKS(rdma_accept(id, &param));
	next(RDMA_CM_EVENT_ESTABLISHED);
	/* The parent's own devices go on after a fork. */
	printf("accepted\n");
	for (;;)
		pause();
}

static int connect_to(struct sockaddr_in *address, int is_refused)
{
	struct rdma_cm_id *id;
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	WORKS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	WORKS(rdma_resolve_addr(id, NULL, (struct sockaddr *)address, 2000));
	next(RDMA_CM_EVENT_ADDR_RESOLVED);
	WORKS(rdma_resolve_route(id, 2000));
	next(RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_queue_pair(id);
	WORKS(rdma_connect(id, &param));
	if (is_refused) {
		next(RDMA_CM_EVENT_REJECTED);
		printf("refused\n");
		return 0;
	}
	next(RDMA_CM_EVENT_ESTABLISHED);
	printf("connected\n");
	next(RDMA_CM_EVENT_DISCONNECTED);
	printf("disconnected\n");
	return 0;
}

int main(int count, char **words)
{
	if (count != 3)
		return 3;
	setvbuf(stdout, NULL, _IOLBF, 0);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(words[2])),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	channel = rdma_create_event_channel();
	if (!channel)
		return 4;
	return strcmp(words[1], "server") ? connect_to(&address, !strcmp(words[1], "refused")) : serve(&address);
}
