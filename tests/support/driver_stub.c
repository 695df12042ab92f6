/* Stands in for the driver's library, libcuda.so.1, on a machine without a GPU.
 *
 * Part of cuDNN is linked against the driver and looks up more of it by name. To list plans and to build them for a
 * described device nothing of it is needed but that it is there: there is no device, all that would use one fails, and
 * all that would prepare code for one is content.
 */
#include <stddef.h>

#define SUCCESS 0
#define NO_DEVICE 100
#define STACK_BYTES 1024

static int object;

#define CONTENT(name) int name(void) { return SUCCESS; }
#define FAILS(name) int name(void) { return NO_DEVICE; }
/* Every maker gives its object out through its first argument. */
#define MAKES(name) int name(void **made) { *made = &object; return SUCCESS; }

FAILS(cuInit)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetAttribute)
FAILS(cuStreamGetCtx)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLinkCreate)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkDestroy)
FAILS(cuOccupancyMaxPotentialClusterSize)

MAKES(cuCtxGetCurrent)
MAKES(cuCtxPopCurrent)
MAKES(cuModuleLoadData)
MAKES(cuModuleGetFunction)
MAKES(cuLibraryLoadData)
MAKES(cuLibraryLoadFromFile)
MAKES(cuLibraryGetKernel)
MAKES(cuKernelGetFunction)

CONTENT(cuCtxPushCurrent)
CONTENT(cuModuleUnload)
CONTENT(cuLibraryUnload)
CONTENT(cuKernelSetAttribute)
CONTENT(cuTensorMapEncodeTiled)
CONTENT(cuTensorMapEncodeIm2col)

int cuDeviceGetCount(int *count) { *count = 0; return SUCCESS; }
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return SUCCESS; }
int cuGetErrorString(int error, const char **text) { *text = "no device"; return SUCCESS; }
int cuCtxGetLimit(size_t *value, int limit) { *value = STACK_BYTES; return SUCCESS; }
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) { *value = 0; return SUCCESS; }
