// Rows of keys and values into the blocks of a paged pool, rotated and narrowed on the way; and, into a pool of one
// token a block, the rotation of queries.
//
// A block of threads takes the rows of one token. A thread has two vectors of 16 bytes, half of the rotated elements
// apart, and takes them of every G-th row, so that cosines and sines are read once and both parts of a pair are at
// hand. They come from a table: sincosf with a large argument needs local memory.
// Where that half is no whole number of vectors (pair_write), vectors are of two elements.
#include "common.cuh"

struct Args {
    void* pool;                       // [blocks, block_elems]
    float* own_scales;                // [blocks, layer_rows], written, or null
    const void *k, *v;                // [tokens, heads, head_dim]; v may be null
    const float *cos, *sin;           // [tokens, half] of the keys' rotation, or null
    const int64_t* slots;             // [tokens], less than 2^32, -1 writes nothing; null where a token is its own slot
    const float *k_scales, *v_scales; // [heads], or null
    int64_t k_stride, v_stride, block_elems, layer_offset, kv_stride, head_stride, token_stride, layer_rows;
    uint32_t tokens_per_block;
    int32_t heads, head_dim, half, interleaved;
    float k_scale, v_scale;           // where there are none for each head
};

// Turns V pairs in place.
template <int V> DEVICE void turn(float* x, float* y, int step, const float* cos, const float* sin) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
        const float a = x[i * step], b = y[i * step];
        x[i * step] = a * cos[i] - b * sin[i];
        y[i * step] = b * cos[i] + a * sin[i];
    }
}

template <typename T, typename TP, int V> DEVICE void write_rows(const Args& args) {
    const int token = blockIdx.x;
    const int64_t slot = args.slots ? args.slots[token] : token;
    if (slot < 0) return;
    const int pairs = args.head_dim / (2 * V);   // of vectors, in a row
    const int groups = blockDim.x / pairs, pair = threadIdx.x % pairs, group = threadIdx.x / pairs;
    // The rotated elements are one stretch of vectors and their partners, the rest is another.
    const int turned = args.half / V;
    const int rest = args.head_dim / 2 - args.half;
    const int first = pair < turned ? pair * V : args.half + pair * V;
    const int second = first + (pair < turned ? args.half : rest);
    float cos[V], sin[V];
    if (pair < turned) {
        const int64_t row = (int64_t)token * args.half;
        if (args.interleaved) {   // pairs lie side by side: half as many to a vector
            load_floats<float, V / 2>(args.cos + row + first / 2, cos), load_floats<float, V / 2>(args.cos + row + second / 2, cos + V / 2);
            load_floats<float, V / 2>(args.sin + row + first / 2, sin), load_floats<float, V / 2>(args.sin + row + second / 2, sin + V / 2);
        } else {
            load_floats<float, V>(args.cos + row + first, cos), load_floats<float, V>(args.sin + row + first, sin);
        }
    }
    const int64_t block = (uint32_t)slot / args.tokens_per_block, in_block = (uint32_t)slot % args.tokens_per_block;
    const int rows = args.v ? 2 * args.heads : args.heads;
    for (int base = 0; base < rows; base += groups) {
        const int row = base + group;
        const bool live = row < rows;   // all lanes of a warp go round together, since they may share a scale
        const bool is_value = row >= args.heads;
        const int head = is_value ? row - args.heads : row;
        float x[V] = {}, y[V] = {};
        if (live) {
            const int64_t start = token * (is_value ? args.v_stride : args.k_stride) + (int64_t)head * args.head_dim;
            const T* const from = static_cast<const T*>(is_value ? args.v : args.k) + start;
            if constexpr (V == kPerVec<T>) {
                const Vec16 a = load_streamed(from + first), b = load_streamed(from + second);
                widen<T>(a, x), widen<T>(b, y);
            } else {
                load_floats<T, V>(from + first, x), load_floats<T, V>(from + second, y);
            }
        }
        if (!is_value && pair < turned) {
            if (args.interleaved) {
                turn<V / 2>(x, x + 1, 2, cos, sin), turn<V / 2>(y, y + 1, 2, cos + V / 2, sin + V / 2);
            } else {
                turn<V>(x, y, 1, cos, sin);
            }
        }
        const int64_t place = is_value * args.kv_stride + head * args.head_stride + in_block * args.token_stride;
        if constexpr (sizeof(TP) == 1) {
            float factor;
            if (args.own_scales) {
                float largest = 0.f;
#pragma unroll
                for (int i = 0; i < V; ++i) largest = larger(largest, larger(fabsf(x[i]), fabsf(y[i])));
                for (int lane = pairs / 2; lane > 0; lane /= 2) largest = larger(largest, __shfl_xor_sync(kAllLanes, largest, lane));
                float scale = largest / Format<TP>::kLargest;
                if (scale < 1.17549435e-38f) scale = 0.f;   // below the normal numbers a reciprocal can be infinite
                factor = scale == 0.f ? 0.f : 1.f / scale;
                if (live && pair == 0) args.own_scales[block * args.layer_rows + place / args.head_dim] = scale;
            } else {
                const float* const scales = is_value ? args.v_scales : args.k_scales;
                factor = 1.f / (!live ? 1.f : scales ? scales[head] : is_value ? args.v_scale : args.k_scale);
            }
#pragma unroll
            for (int i = 0; i < V; ++i) x[i] *= factor, y[i] *= factor;
        }
        if (!live) continue;
        TP* const to = static_cast<TP*>(args.pool) + block * args.block_elems + args.layer_offset + place;
        store_floats<TP, V>(to + first, x);
        store_floats<TP, V>(to + second, y);
    }
}

#define KERNEL(name, V, input, pool, T, TP)                                                                       \
    extern "C" __global__ void __launch_bounds__(128) name##_##input##_##pool(const __grid_constant__ Args args) { \
        write_rows<T, TP, V>(args);                                                                                \
    }
#define VECTORS(input, pool, T, TP) KERNEL(cache_write, kPerVec<T>, input, pool, T, TP)
#define PAIRS(format, T) KERNEL(pair_write, 2, format, format, T, T)

// prove cache_write: 80 registers, LDG.E.EF.128
VECTORS(f32, f32, float, float)
VECTORS(f32, bf16, float, __nv_bfloat16)
VECTORS(f32, f16, float, __half)
VECTORS(f32, f8, float, Fp8)
VECTORS(f32, i8, float, Int8)
VECTORS(bf16, bf16, __nv_bfloat16, __nv_bfloat16)
VECTORS(bf16, f8, __nv_bfloat16, Fp8)
VECTORS(bf16, i8, __nv_bfloat16, Int8)
VECTORS(f16, f16, __half, __half)
VECTORS(f16, f8, __half, Fp8)
VECTORS(f16, i8, __half, Int8)
// prove pair_write: 40 registers
PAIRS(f32, float)
PAIRS(bf16, __nv_bfloat16)
PAIRS(f16, __half)
