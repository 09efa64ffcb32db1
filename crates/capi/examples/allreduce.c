/* Every rank has a vector; all get the average. Then the same again while the rank computes. */
#include "check.h"

enum { COUNT = 1 << 16 };

static float gradients[COUNT], average[COUNT];

int main(void) {
    railnetComm_t comm;
    railnetRequest_t request;
    int rank, ranks, done = 0, turns = 0;
    float expected, scalar;
    railnetRedOp_t scaled;
    size_t index;

    CHECK(railnetCommInitFromEnv(&comm));
    CHECK(railnetCommUserRank(comm, &rank));
    CHECK(railnetCommCount(comm, &ranks));
    for (index = 0; index < COUNT; index++)
        gradients[index] = (float)(rank + (int)(index % 7));

    CHECK(railnetAllReduce(gradients, average, COUNT, railnetFloat32, railnetAvg, comm, NULL));
    for (index = 0; index < COUNT; index++) {
        expected = (float)(ranks - 1) / 2 + (float)(index % 7);
        if (average[index] != expected) {
            fprintf(stderr, "element %lu is %g, not %g\n", (unsigned long)index, average[index], expected);
            return 1;
        }
    }

    /* In place, with a factor for what each rank gives, and a request. */
    scalar = 2;
    CHECK(railnetRedOpCreatePreMulSum(&scaled, &scalar, railnetFloat32, comm));
    CHECK(railnetAllReduce(gradients, gradients, COUNT, railnetFloat32, scaled, comm, &request));
    CHECK(railnetRedOpDestroy(scaled, comm));
    while (!done) {
        turns++; /* something useful */
        CHECK(railnetTest(&request, &done));
    }
    for (index = 0; index < COUNT; index++) {
        if (gradients[index] != 2 * (float)ranks * average[index]) {
            fprintf(stderr, "element %lu is %g\n", (unsigned long)index, gradients[index]);
            return 1;
        }
    }
    printf("rank %d of %d: %d elements are right\n", rank, ranks, (int)COUNT);
    CHECK(railnetCommDestroy(comm));
    return turns > 0 ? 0 : 1;
}
