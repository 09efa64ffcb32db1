/* Collectives and messages of an MPI library, every element checked. For tests/full/verbs.sh: which network carries them is the
   library's business. Prints one line and ends with 0 if everything was right. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks, wrong;

static double contribution(int of, int index)
{
	return of + index % 1000;
}

static void all_reduce(int count)
{
	double *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
	for (int index = 0; index < count; index++)
		in[index] = contribution(rank, index);
	MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	for (int index = 0; index < count; index++)
		wrong += out[index] != ranks * (index % 1000) + ranks * (ranks - 1) / 2;
	free(in);
	free(out);
}

static void all_to_all(int count)
{
	int *in = malloc((size_t)ranks * count * sizeof *in), *out = malloc((size_t)ranks * count * sizeof *out);
	for (int to = 0; to < ranks; to++)
		for (int index = 0; index < count; index++)
			in[to * count + index] = rank * 1000003 + to * 1009 + index;
	MPI_Alltoall(in, count, MPI_INT, out, count, MPI_INT, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++)
		for (int index = 0; index < count; index++)
			wrong += out[from * count + index] != from * 1000003 + rank * 1009 + index;
	free(in);
	free(out);
}

/* A ring of messages, every rank sending and receiving at once. */
static void messages(int count)
{
	int *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	for (int index = 0; index < count; index++)
		out[index] = rank * 7919 + index;
	MPI_Sendrecv(out, count, MPI_INT, next, 5, in, count, MPI_INT, previous, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int index = 0; index < count; index++)
		wrong += in[index] != previous * 7919 + index;
	free(in);
	free(out);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int count = 1; count <= 1 << 18; count *= 8) {
		all_reduce(count);
		all_to_all(count / 4 + 1);
		messages(count);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	int all = 0;
	MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks, %d wrong elements\n", ranks, all);
	MPI_Finalize();
	return wrong != 0;
}
