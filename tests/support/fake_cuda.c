/* Stands in for libcuda.so.1: a Hopper GPU that is divided into groups of 8 multiprocessors, as far as the harness asks for it.

   FAKE_CUDA_VERSION, FAKE_CUDA_SMS: another driver, another GPU. FAKE_CUDA_STREAMS_BEFORE: streams are of no group.
   A group keeps its first multiprocessor where the driver keeps what nobody else reads. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int type;
    int first;
    unsigned char of_driver[88];
    unsigned int multiprocessors;
    unsigned char more[44];
} resource;
_Static_assert(sizeof(resource) == 144, "as CUdevResource");

static resource described, green;
static void *current = (void *)0x1;

static int number(const char *name, int otherwise) {
    const char *given = getenv(name);
    return given ? atoi(given) : otherwise;
}

int cuInit(unsigned int flags) { return number("FAKE_CUDA_FAILS", 0); }
int cuGetErrorString(int code, const char **text) { *text = code == 100 ? "no CUDA-capable device is detected" : "invalid"; return 0; }
int cuDriverGetVersion(int *version) { *version = number("FAKE_CUDA_VERSION", 13000); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetDevResource(int device, resource *all, int type) {
    memset(all, 0, sizeof *all);
    all->type = type;
    all->multiprocessors = number("FAKE_CUDA_SMS", 132);
    return 0;
}
int cuDevSmResourceSplitByCount(resource *result, unsigned int *groups, const resource *all, resource *rest, unsigned int flags, unsigned int least) {
    unsigned int size = (least + 7) / 8 * 8, usable = all->multiprocessors / 8 * 8;
    if (size > usable) return 915;
    if (*groups > usable / size) *groups = usable / size;
    for (unsigned int index = 0; index < *groups; index++) {
        result[index] = *all;
        result[index].first = index * size;
        result[index].multiprocessors = size;
    }
    return 0;
}
int cuDevResourceGenerateDesc(resource **description, const resource *parts, unsigned int count) {
    described = *parts;
    *description = &described;
    return 0;
}
int cuGreenCtxCreate(resource **made, const resource *description, int device, unsigned int flags) {
    if (flags != 1) return 1;
    green = *description;
    *made = &green;
    return 0;
}
int cuCtxFromGreenCtx(void **context, resource *of) { *context = of; return 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
int cuStreamGetGreenCtx(void *stream, void **of) {
    *of = number("FAKE_CUDA_STREAMS_BEFORE", 0) || stream == (void *)0x1 ? NULL : stream;
    return 0;
}
int cuGreenCtxGetDevResource(const resource *of, resource *has, int type) { *has = *of; return 0; }

/* For tests: what torch would do, whose streams belong to the context that is current. */
void *fake_stream(void) { return current; }
int fake_first(void *stream) { return ((resource *)stream)->first; }
