// Stands in for CUDA where kernels are compiled by g++.
//
// A KERNEL's threads never meet, so they run one after the other in a loop. A COOPERATIVE_KERNEL gets a fiber for each
// thread of a block; fibers change only at barriers and shuffles. Both run in rising or in falling order of blocks and
// threads: a result that differs shows a race. What is reported instead of a result: a barrier that some threads of a
// block miss or reach at another place, the same for the shuffles of a warp, and a meeting in a kernel that declares
// none. Shared memory is full of NaN when a block starts.
//
// Compiled with contraction into fused multiply-adds wherever the processor has them, as a GPU's compiler does; the
// intrinsics that are never contracted are kept apart by an empty assembler statement.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#include <string>
#include <utility>
#include <vector>

#define __device__
#define __shared__ static __attribute__((section("cuda_shared")))
#define KERNEL extern "C" void
#define COOPERATIVE_KERNEL extern "C" cuda_on_cpu::cooperative

struct Index3 {
    unsigned x, y, z;
};
inline Index3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, blockDim{1, 1, 1}, gridDim{1, 1, 1};

extern "C" char __start_cuda_shared[] __attribute__((weak)), __stop_cuda_shared[] __attribute__((weak));

namespace cuda_on_cpu {
typedef void cooperative;
typedef void (*Invoke)(void**);

enum State { READY, AT_BARRIER, IN_SHUFFLE, DONE };
struct Fiber {
    ucontext_t first;
    jmp_buf at;
    std::vector<char> stack;
    bool started = false;
    State state = DONE;
    int line = 0;
    unsigned long long sent = 0;
};
// What the lanes of a warp sent to the shuffle that they go on from; kept apart from what they send to the next.
struct Warp {
    unsigned long long received[32];
};
inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline jmp_buf scheduler;
inline unsigned running = 0;
inline bool in_fiber = false;
inline Invoke invoke = nullptr;
inline void** arguments = nullptr;
inline std::string fault;
constexpr unsigned WARP = 32;

// `_setjmp` and `_longjmp` change stacks without a system call, which `swapcontext` would make each time.
__attribute__((noinline)) inline void leave(State state) {
    fibers[running].state = state;
    if (!_setjmp(fibers[running].at)) _longjmp(scheduler, 1);
}
inline void live() {
    for (;;) {
        invoke(arguments);
        leave(DONE);
    }
}
__attribute__((noinline)) inline void resume(unsigned thread) {
    Fiber& fiber = fibers[thread];
    running = thread;
    threadIdx.x = thread;
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.at, 1);
    fiber.started = true;
    fiber.stack.resize(32 << 10);
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = fiber.stack.data();
    fiber.first.uc_stack.ss_size = fiber.stack.size();
    fiber.first.uc_link = nullptr;
    makecontext(&fiber.first, live, 0);
    setcontext(&fiber.first);
}

inline void meet(State state, int line) {
    if (!in_fiber) {
        // A plain kernel cannot wait; it goes on, and its launch fails.
        fault = "line " + std::to_string(line) + ": threads meet in a kernel that is not cooperative";
        return;
    }
    fibers[running].line = line;
    leave(state);
}

// Lets the threads from `first` to before `last` go on if all wait in `state` at one line; threads that are done or
// elsewhere are a fault. Returns whether they go on.
inline bool release(unsigned first, unsigned last, State state, const char* what) {
    for (unsigned t = first; t < last; ++t)
        if (fibers[t].state != state || fibers[t].line != fibers[first].line) {
            fault = "block " + std::to_string(blockIdx.x) + ": threads part at a " + what + ": thread " +
                    std::to_string(first) + " is at line " + std::to_string(fibers[first].line) + ", thread " +
                    std::to_string(t) + (fibers[t].state == DONE ? " has left" : fibers[t].state == state
                     ? " at line " + std::to_string(fibers[t].line) : " waits for something else");
            return false;
        }
    for (unsigned t = first; t < last; ++t) {
        if (state == IN_SHUFFLE) warps[first / WARP].received[t - first] = fibers[t].sent;
        fibers[t].state = READY;
    }
    return true;
}

// Runs the threads from `first` to before `last` as far as they get without the other warps, which shows where a warp
// must not run ahead. Returns false after a fault.
inline bool run_warp(unsigned first, unsigned last, bool falling) {
    for (;;) {
        for (unsigned i = first; i < last; ++i) {
            const unsigned t = falling ? first + last - 1 - i : i;
            if (fibers[t].state == READY) resume(t);
            if (!fault.empty()) return false;
        }
        bool shuffles = false;
        for (unsigned t = first; t < last; ++t) shuffles |= fibers[t].state == IN_SHUFFLE;
        if (!shuffles) return true;
        if (!release(first, last, IN_SHUFFLE, "shuffle")) return false;
    }
}

inline void run_block(unsigned threads, bool falling) {
    if (fibers.size() < threads) fibers.resize(threads);
    if (warps.size() * WARP < threads) warps.resize((threads + WARP - 1) / WARP);
    for (unsigned t = 0; t < threads; ++t) fibers[t].state = READY;
    const unsigned count = (threads + WARP - 1) / WARP;
    for (;;) {
        for (unsigned i = 0; i < count; ++i) {
            const unsigned first = (falling ? count - 1 - i : i) * WARP;
            if (!run_warp(first, first + WARP < threads ? first + WARP : threads, falling)) return;
        }
        unsigned done = 0;
        for (unsigned t = 0; t < threads; ++t) done += fibers[t].state == DONE;
        if (done == threads || !release(0, threads, AT_BARRIER, "barrier")) return;
    }
}

inline void launch(Invoke kernel, bool cooperates, unsigned blocks, unsigned threads, bool falling, void** values) {
    invoke = kernel;
    arguments = values;
    fault.clear();
    gridDim.x = blocks;
    blockDim.x = threads;
    in_fiber = cooperates;
    for (unsigned i = 0; i < blocks && fault.empty(); ++i) {
        blockIdx.x = falling ? blocks - 1 - i : i;
        if (cooperates) {
            if (__start_cuda_shared) memset(__start_cuda_shared, 0xFF, __stop_cuda_shared - __start_cuda_shared);
            run_block(threads, falling);
        } else {
            for (unsigned t = 0; t < threads; ++t) {
                threadIdx.x = falling ? threads - 1 - t : t;
                kernel(values);
            }
        }
    }
    // Fibers that a fault left inside a kernel start anew.
    if (!fault.empty()) fibers.clear();
}

// From a kernel's signature: how to call it with pointers to its arguments, and a letter for each of them.
template <typename T> struct Letter {
    static constexpr char value = '?';
};
template <typename T> struct Letter<T*> {
    static constexpr char value = 'p';
};
template <> struct Letter<int> {
    static constexpr char value = 'i';
};
template <> struct Letter<long long> {
    static constexpr char value = 'l';
};
template <> struct Letter<float> {
    static constexpr char value = 'f';
};
template <> struct Letter<double> {
    static constexpr char value = 'd';
};
template <auto KERNEL_FUNCTION> struct Binding;
template <typename... A, void (*KERNEL_FUNCTION)(A...)> struct Binding<KERNEL_FUNCTION> {
    template <size_t... I> static void call(void** values, std::index_sequence<I...>) {
        KERNEL_FUNCTION(*static_cast<A*>(values[I])...);
    }
    static void invoke(void** values) { call(values, std::index_sequence_for<A...>()); }
    static const char* letters() {
        static const char made[] = {Letter<A>::value..., 0};
        return made;
    }
};
}  // namespace cuda_on_cpu

#define __syncthreads() cuda_on_cpu::meet(cuda_on_cpu::AT_BARRIER, __LINE__)
#define __shfl_xor_sync(mask, value, lanes) cuda_on_cpu::shuffle(value, (int)(threadIdx.x % 32) ^ (lanes), __LINE__)

namespace cuda_on_cpu {
template <typename T> inline T shuffle(T value, int lane, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    if (in_fiber) memcpy(&fibers[running].sent, &value, sizeof(T));
    meet(IN_SHUFFLE, line);
    if (in_fiber && lane < 32) memcpy(&value, &warps[running / WARP].received[lane], sizeof(T));
    return value;
}
template <typename T> inline T apart(T value) {
#if defined(__x86_64__)
    asm("" : "+x"(value));
#elif defined(__aarch64__)
    asm("" : "+w"(value));
#else
    volatile T held = value;
    value = held;
#endif
    return value;
}
}  // namespace cuda_on_cpu

inline float __fmul_rn(float a, float b) { return cuda_on_cpu::apart(a * b); }
inline float __fadd_rn(float a, float b) { return cuda_on_cpu::apart(cuda_on_cpu::apart(a) + cuda_on_cpu::apart(b)); }
inline float __fsub_rn(float a, float b) { return cuda_on_cpu::apart(cuda_on_cpu::apart(a) - cuda_on_cpu::apart(b)); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dmul_rn(double a, double b) { return cuda_on_cpu::apart(a * b); }
inline double __dadd_rn(double a, double b) { return cuda_on_cpu::apart(cuda_on_cpu::apart(a) + cuda_on_cpu::apart(b)); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
inline float __int_as_float(int bits) {
    float made;
    memcpy(&made, &bits, sizeof made);
    return made;
}
inline float __uint_as_float(unsigned bits) { return __int_as_float((int)bits); }
inline unsigned __float_as_uint(float value) {
    unsigned made;
    memcpy(&made, &value, sizeof made);
    return made;
}
