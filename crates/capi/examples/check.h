/* Ends the program with the whole message where a call fails. */
#ifndef CHECK_H
#define CHECK_H

#include <railnet.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                               \
    do {                                                          \
        if ((call) != railnetSuccess) {                           \
            fprintf(stderr, "%s\n", railnetGetLastError(NULL));   \
            exit(1);                                              \
        }                                                         \
    } while (0)

#endif
