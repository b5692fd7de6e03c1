/* A CUDA driver that runs nothing: it notes what it is asked to do, for tests/test_cuda_driver.py and
   benchmarks/gpu_call_costs.py.

   It is loaded in the place of libcuda.so.1, so that the real cuda-bindings and Numba call it. Only what acts is noted,
   one line each; what merely asks is answered. Streams and addresses are numbers that nothing follows. As in the
   driver, whatever acts needs a context that is current in its thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
enum { MAJOR = 75, MINOR = 76, MULTIPROCESSORS = 16, MOST_DYNAMIC_SHARED = 8 };  /* attributes */
enum { CONTEXT = 0xC000, SHARED = 48 * 1024 };

typedef unsigned long long handle;

/* --- what a test asks of it --- */

static char text[1 << 16], taken[1 << 16], failing[64];
static size_t used;
static handle events;
static int failure, notes = 1;

/* What was noted since it was last asked for; events are counted from 1 again. */
const char *stub_take(void) {
    memcpy(taken, text, used + 1);
    text[used = 0] = 0;
    events = 0;
    return taken;
}

/* From now on the function of that name answers with that status, and does nothing; none where the name is empty. */
void stub_fail(const char *name, int status) {
    snprintf(failing, sizeof failing, "%s", name);
    failure = status;
}

/* Whether anything is noted from now on: where calls are timed, nothing is. */
void stub_note(int whether) { notes = whether; }

static void note(const char *format, ...) {
    if (!notes) return;
    va_list values;
    va_start(values, format);
    used += vsnprintf(text + used, sizeof text - used, format, values);
    va_end(values);
    if (used >= sizeof text) used = sizeof text - 1;  /* the rest was cut off */
}

#define MAY_FAIL if (!strcmp(failing, __func__)) return failure
#define ACTS MAY_FAIL; if (!depth) return INVALID_CONTEXT

/* --- the driver, devices, contexts --- */

static __thread handle contexts[16];
static __thread int depth, capture_mode;

int cuInit(unsigned flags) { MAY_FAIL; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "stub"); return 0; }
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 0, 16); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == MAJOR ? 9 : attribute == MINOR ? 0 : attribute == MULTIPROCESSORS ? 132 : 1;
    return 0;
}
int cuDevicePrimaryCtxRetain(handle *context, int device) { *context = CONTEXT; return 0; }
int cuDevicePrimaryCtxRelease(int device) { return 0; }
int cuCtxGetCurrent(handle *context) { *context = depth ? contexts[depth - 1] : 0; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return depth ? 0 : INVALID_CONTEXT; }
int cuCtxPushCurrent(handle context) { contexts[depth++] = context; return 0; }
int cuCtxPopCurrent(handle *context) { *context = contexts[--depth]; return 0; }
int cuCtxPushCurrent_v2(handle context) { return cuCtxPushCurrent(context); }
int cuCtxPopCurrent_v2(handle *context) { return cuCtxPopCurrent(context); }
int cuCtxSetCurrent(handle context) { depth += !depth; contexts[depth - 1] = context; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}
int cuGetErrorName(int status, const char **name) { *name = "a name"; return 0; }
int cuGetErrorString(int status, const char **words) { *words = "the words of the driver"; return 0; }

/* --- kernels: the image of a module is its kernel's name and the number of its arguments; they get more than SHARED
   bytes of shared memory only after they asked for it --- */

static struct kernel { char name[64]; int arguments; unsigned shared; } kernels[64];
static int loaded;

int cuModuleLoadData(struct kernel **module, const void *image) {
    ACTS;
    *module = &kernels[loaded++ % 64];
    (*module)->shared = SHARED;
    sscanf(image, "%63s %d", (*module)->name, &(*module)->arguments);
    note("cuModuleLoadData %s mode %d\n", (*module)->name, capture_mode);
    return 0;
}
int cuModuleUnload(struct kernel *module) { return 0; }
int cuModuleGetFunction(struct kernel **kernel, struct kernel *module, const char *name) {
    *kernel = module;
    return strcmp(name, module->name) ? NOT_FOUND : 0;
}
int cuFuncSetAttribute(struct kernel *kernel, int attribute, int value) {
    if (attribute == MOST_DYNAMIC_SHARED) kernel->shared = value;
    return 0;
}
int cuLaunchKernel(struct kernel *kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned rows,
                   unsigned planes, unsigned shared, handle stream, int64_t **arguments, void **extra) {
    ACTS;
    if (shared > kernel->shared) return INVALID_VALUE;
    note("cuLaunchKernel %s grid %u %u %u block %u %u %u shared %u stream %llu arguments",
         kernel->name, x, y, z, threads, rows, planes, shared, stream);
    for (int place = 0; place < kernel->arguments; place++) note(" %lld", (long long)*arguments[place]);
    note("\n");
    return 0;
}
int cuLaunchKernelEx(const struct { unsigned x, y, z, threads, rows, planes, shared; handle stream; } *config,
                     struct kernel *kernel, int64_t **arguments, void **extra) {
    return cuLaunchKernel(kernel, config->x, config->y, config->z, config->threads, config->rows, config->planes,
                          config->shared, config->stream, arguments, extra);
}

/* --- memory, which nobody reads or writes: whoever asks is told that it is the device's --- */

int cuMemAlloc(handle *address, size_t size) {
    static handle next = (handle)1 << 40;
    ACTS;
    note("cuMemAlloc %zu\n", size);
    *address = next;
    next += (size + 511) / 512 * 512;
    return 0;
}
int cuMemGetInfo(size_t *available, size_t *all) { *available = *all = (size_t)1 << 37; return 0; }
int cuPointerGetAttribute(int *device, int attribute, handle address) { MAY_FAIL; *device = 0; return 0; }

/* --- streams, and what lets one wait for another on the device --- */

int cuEventCreate(handle *event, unsigned flags) { ACTS; *event = ++events; return 0; }
int cuEventDestroy(handle event) { return 0; }
int cuEventRecord(handle event, handle stream) { ACTS; note("cuEventRecord %llu on %llu\n", event, stream); return 0; }
int cuStreamWaitEvent(handle stream, handle event, unsigned flags) {
    ACTS;
    note("cuStreamWaitEvent %llu for %llu\n", stream, event);
    return 0;
}

/* --- what lets the host wait, which pyconv never calls --- */

#define WAITS(name) int name(void) { note(#name "\n"); return 0; }
WAITS(cuCtxSynchronize) WAITS(cuStreamSynchronize) WAITS(cuEventSynchronize) WAITS(cuStreamQuery) WAITS(cuEventQuery)
WAITS(cuMemcpy) WAITS(cuMemcpyHtoD) WAITS(cuMemcpyDtoH) WAITS(cuMemcpyDtoD) WAITS(cuMemFree)

/* How cuda-bindings finds every function, by its name without a version. */
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    *found = dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), name);
    if (status) *status = !*found;
    return *found ? 0 : NOT_FOUND;
}
