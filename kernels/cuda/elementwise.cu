// What stands between the products of a layer: a gated product and a weighted sum. A thread has one vector of 16 bytes
// of each operand.
#include "common.cuh"

struct Args {
    const void *x, *y;           // rows; without y the second half of the rows of x
    void* out;                   // [rows, width]
    int64_t x_stride, y_stride;  // of rows
    int32_t width;
    float a, b;
};

enum { kSiluProduct, kWeightedSum };

template <typename T, int OP> DEVICE void elementwise(const Args& args) {
    constexpr int V = kPerVec<T>;
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * V;
    const int64_t row = blockIdx.x;
    if (column >= args.width) return;
    const T* const from = static_cast<const T*>(args.x) + row * args.x_stride + column;
    const Vec16 left = load_streamed(from);
    const Vec16 right = load_streamed(OP == kSiluProduct ? from + args.width : static_cast<const T*>(args.y) + row * args.y_stride + column);
    float x[V], y[V];
    widen<T>(left, x), widen<T>(right, y);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = OP == kSiluProduct ? silu(x[i]) * y[i] : args.a * x[i] + args.b * y[i];
    store_streamed(static_cast<T*>(args.out) + row * args.width + column, narrow<T>(x));
}

#define KERNELS(format, T)                                                                                                \
    extern "C" __global__ void __launch_bounds__(128) silu_product_##format(const __grid_constant__ Args args) {          \
        elementwise<T, kSiluProduct>(args);                                                                               \
    }                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) weighted_sum_##format(const __grid_constant__ Args args) {          \
        elementwise<T, kWeightedSum>(args);                                                                               \
    }

// prove silu_product: 40 registers, LDG.E.EF.128, STG.E.EF.128
// prove weighted_sum: 40 registers, LDG.E.EF.128, STG.E.EF.128
KERNELS(f32, float)
KERNELS(bf16, __nv_bfloat16)
KERNELS(f16, __half)
