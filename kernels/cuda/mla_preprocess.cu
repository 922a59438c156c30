// The preprocessing of multi-head latent attention for the few tokens of a decode step, in four kernels that each leave to
// the next what they make: a token's row is normed and quantised (mla_norm), multiplied down (mla_down); its latent is
// normed, its rope key rotated, both are written into their caches, and its compressed query is normed and quantised
// (mla_latent); a block for each head multiplies that up, rotates the one part and absorbs the other (mla_heads).
// Each weight is read once for every kRows tokens, by vectors of 16 bytes, and nothing of it is kept: the rate of memory
// bounds the step. Products of int8 are summed in int32, four at a time, those of bf16 in f32.
#include "common.cuh"

using bf16 = __nv_bfloat16;

enum { kPerTensor, kPerToken, kUnquantised };

struct Cache {
    void* pool;             // [blocks, block_elems]; null where there is none
    const int64_t* slots;   // [tokens], -1 writes nothing
    int64_t block_elems, layer_offset;
    int32_t block, column;  // tokens of a block, elements of a column
};

struct Quant {
    const bf16 *gamma, *beta, *scale;   // beta and scale may be null
    const int8_t* offset;
    void* out;                          // [tokens, width], int8 or bf16
    float* scales;                      // [tokens]
};

struct Product {
    const void* weight;     // [rows, width], int8 or bf16; null where there is none
    const float* factors;   // [rows], or null
    const int32_t* bias;    // [rows], or null
};

struct Args {
    const bf16* input;         // [tokens, hidden]
    Quant norm0, norm1;
    Product down, up;
    const bf16 *gamma2, *cos, *sin, *absorb, *latent_scale, *query_scale;
    float* below;              // [tokens, down_rows], numbers of bf16
    void* q;                   // [tokens, heads, kv_lora (+ rope)], bf16 or int8
    bf16* q_rope;              // [tokens, heads, rope], or null where that stands behind the rest
    Cache cache, rope_cache;
    int32_t tokens, hidden, heads, q_lora, kv_lora, nope, rope, down_rows, mode;
    float eps0, eps1, eps2;
};

constexpr int kThreads = 256, kWarps = kThreads / 32, kRows = 4, kOutputs = 2, kMostQuery = 256;

DEVICE float rounded(float v) { return to_float(from_float<bf16>(v)); }
DEVICE int8_t to_int8(float v) { return static_cast<int8_t>(min(max(__float2int_rn(v), -128), 127)); }

// The sum, or the largest, over all threads of the block, through shared memory that is this call's alone.
template <bool SUM> DEVICE float over_block(float v, float (&partial)[kWarps]) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(kAllLanes, v, offset);
        v = SUM ? v + other : fmaxf(v, other);
    }
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    v = partial[0];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) v = SUM ? v + partial[warp] : fmaxf(v, partial[warp]);
    return v;
}

// Elements of a row that a thread takes at a time.
constexpr int kStep = 4;

template <typename X> DEVICE float root_of(const X* x, int width, float eps, float (&partial)[kWarps]) {
    float sum = 0.f;
    for (int i = threadIdx.x * kStep; i < width; i += kThreads * kStep) {
        float v[kStep];
        load_floats<X, kStep>(x + i, v);
#pragma unroll
        for (int k = 0; k < kStep; ++k) sum += v[k] * v[k];
    }
    return sqrtf(over_block<true>(sum, partial) / width + eps);
}

// A row, normed and as its product takes it.
template <typename X>
DEVICE void norm_row(const X* x, const Quant& to, int row, int width, float eps, int mode, float (&partial)[2][kWarps]) {
    const float root = root_of(x, width, eps, partial[0]);
    auto normed = [&](int i, float (&v)[kStep]) {
        float gamma[kStep], beta[kStep] = {};
        load_floats<X, kStep>(x + i, v);
        load_floats<bf16, kStep>(to.gamma + i, gamma);
        if (to.beta) load_floats<bf16, kStep>(to.beta + i, beta);
#pragma unroll
        for (int k = 0; k < kStep; ++k) v[k] = rounded(v[k] / root * gamma[k] + beta[k]);
    };
    float divisor = 1.f, offset = 0.f, scale = 1.f;
    if (mode == kPerToken) {
        float most = 0.f;
        for (int i = threadIdx.x * kStep; i < width; i += kThreads * kStep) {
            float v[kStep];
            normed(i, v);
#pragma unroll
            for (int k = 0; k < kStep; ++k) most = fmaxf(most, fabsf(v[k]));
        }
        scale = over_block<false>(most, partial[1]) / 127.f;
        divisor = scale == 0.f ? 1.f : scale;
    } else if (mode == kPerTensor) {
        divisor = to_float(*to.scale), offset = __int2float_rn(*to.offset);
    }
    const int64_t start = static_cast<int64_t>(row) * width;
    for (int i = threadIdx.x * kStep; i < width; i += kThreads * kStep) {
        float v[kStep];
        normed(i, v);
        if (mode == kUnquantised) {
            store_floats<bf16, kStep>(static_cast<bf16*>(to.out) + start + i, v);
            continue;
        }
#pragma unroll
        for (int k = 0; k < kStep; ++k) v[k] = v[k] / divisor + offset;
        store_floats<Int8, kStep>(static_cast<Int8*>(to.out) + start + i, v);
    }
    if (mode != kUnquantised && threadIdx.x == 0) to.scales[row] = scale;
}

// Sums of 16 bytes of a row and of a weight.
DEVICE void add_products(const Vec16& x, const Vec16& w, int& sum) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum = __dp4a(static_cast<int>(x.words[i]), static_cast<int>(w.words[i]), sum);
}
DEVICE void add_products(const Vec16& x, const Vec16& w, float& sum) {
    float left[8], right[8];
    widen<bf16>(x, left), widen<bf16>(w, right);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += left[i] * right[i];
}

DEVICE Vec16 load(const void* from) {
    const uint4 v = __ldg(static_cast<const uint4*>(from));
    return Vec16{{v.x, v.y, v.z, v.w}};
}

// Outputs first to first + kOutputs of kRows rows, by a warp: `each` gets row, output and number in the lane of that number.
template <typename W, typename Sum, typename Each>
DEVICE void multiply(const Product& of, const Quant& from, int width, int row, int rows, int first, int end, Each each) {
    constexpr int V = kPerVec<W>;
    const int lane = threadIdx.x % 32;
    const W* const weight = static_cast<const W*>(of.weight) + static_cast<int64_t>(first) * width;
    const W* const x = static_cast<const W*>(from.out) + static_cast<int64_t>(row) * width;
    Sum sums[kRows][kOutputs] = {};
    for (int at = lane * V; at < width; at += 32 * V) {
        Vec16 w[kOutputs];
#pragma unroll
        for (int n = 0; n < kOutputs; ++n) w[n] = load_streamed(weight + (first + n < end ? static_cast<int64_t>(n) * width : 0) + at);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (r >= rows) break;
            const Vec16 v = load(x + static_cast<int64_t>(r) * width + at);
#pragma unroll
            for (int n = 0; n < kOutputs; ++n) add_products(v, w[n], sums[r][n]);
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int n = 0; n < kOutputs; ++n) {
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2) sums[r][n] += __shfl_xor_sync(kAllLanes, sums[r][n], offset);
            const int output = first + n;
            if (lane != r * kOutputs + n || r >= rows || output >= end) continue;
            float v = static_cast<float>(sums[r][n] + (of.bias ? of.bias[output] : 0));
            if (of.factors) v = v * of.factors[output] * from.scales[row + r];
            each(r, output, rounded(v));
        }
}

// Where element i of a token's row lies in a cache, or -1.
DEVICE int64_t place(const Cache& cache, int token, int i) {
    const int64_t slot = cache.slots[token];
    if (slot < 0) return -1;
    const int64_t block = slot / cache.block, in_block = slot % cache.block;
    const int64_t column = i / cache.column;
    return block * cache.block_elems + cache.layer_offset + (column * cache.block + in_block) * cache.column + i % cache.column;
}

DEVICE float turned(float x, float other, bf16 cos, bf16 sin, bool first) {
    return rounded(x * to_float(cos) + (first ? -other : other) * to_float(sin));
}

extern "C" __global__ void __launch_bounds__(kThreads) mla_norm_bf16(const __grid_constant__ Args args) {
    __shared__ float partial[2][kWarps];
    const int row = blockIdx.x;
    norm_row(args.input + static_cast<int64_t>(row) * args.hidden, args.norm0, row, args.hidden, args.eps0, args.mode, partial);
}

template <typename W, typename Sum> DEVICE void down(const Args& args) {
    const int row = blockIdx.y * kRows, rows = min(kRows, args.tokens - row);
    const int first = (blockIdx.x * kWarps + threadIdx.x / 32) * kOutputs;
    if (first >= args.down_rows) return;
    multiply<W, Sum>(args.down, args.norm0, args.hidden, row, rows, first, args.down_rows, [&](int r, int output, float v) {
        args.below[static_cast<int64_t>(row + r) * args.down_rows + output] = v;
    });
}

extern "C" __global__ void __launch_bounds__(kThreads) mla_latent_bf16(const __grid_constant__ Args args) {
    __shared__ float of_latent[kWarps], of_query[2][kWarps];
    const int token = blockIdx.x, half = args.rope / 2;
    const float* const below = args.below + static_cast<int64_t>(token) * args.down_rows;
    const bool joined = !args.rope_cache.pool;
    const float root = root_of(below, args.kv_lora, args.eps2, of_latent);
    const float unit = args.latent_scale ? 1.f / to_float(*args.latent_scale) : 1.f;
    for (int i = threadIdx.x; i < args.kv_lora; i += kThreads) {
        const float v = rounded(below[i] / root * to_float(args.gamma2[i]));
        const int64_t at = place(args.cache, token, i);
        if (at < 0) break;
        if (args.latent_scale) static_cast<int8_t*>(args.cache.pool)[at] = to_int8(v * unit);
        else static_cast<bf16*>(args.cache.pool)[at] = from_float<bf16>(v);
    }
    const float* const key = below + args.kv_lora;
    for (int i = threadIdx.x; i < args.rope; i += kThreads) {
        const int64_t at = joined ? place(args.cache, token, args.kv_lora + i) : place(args.rope_cache, token, i);
        if (at < 0) break;
        const bool first = i < half;
        const int turn = token * args.rope + i;
        const float v = turned(key[i], key[first ? i + half : i - half], args.cos[turn], args.sin[turn], first);
        static_cast<bf16*>(joined ? args.cache.pool : args.rope_cache.pool)[at] = from_float<bf16>(v);
    }
    if (args.up.weight) norm_row(key + args.rope, args.norm1, token, args.q_lora, args.eps1, args.mode, of_query);
}

template <typename W, typename Sum> DEVICE void heads(const Args& args) {
    __shared__ float query[kRows][kMostQuery];
    const int head = blockIdx.x, row = blockIdx.y * kRows, rows = min(kRows, args.tokens - row), size = args.nope + args.rope;
    if (args.up.weight) {
        const int begin = head * size, end = begin + size;
        for (int first = begin + threadIdx.x / 32 * kOutputs; first < end; first += kWarps * kOutputs)
            multiply<W, Sum>(args.up, args.norm1, args.q_lora, row, rows, first, end,
                             [&](int r, int output, float v) { query[r][output - begin] = v; });
    } else {
        for (int at = threadIdx.x; at < rows * size; at += kThreads) {
            const int64_t below = static_cast<int64_t>(row + at / size) * args.down_rows + args.kv_lora + args.rope;
            query[at / size][at % size] = args.below[below + head * size + at % size];
        }
    }
    __syncthreads();
    const bool joined = !args.q_rope;
    const int width = joined ? args.kv_lora + args.rope : args.kv_lora, half = args.rope / 2;
    for (int at = threadIdx.x; at < rows * args.rope; at += kThreads) {
        const int r = at / args.rope, i = at % args.rope, turn = (row + r) * args.rope + i;
        const bool first = i < half;
        const float* const q = query[r] + args.nope;
        const float v = turned(q[i], q[first ? i + half : i - half], args.cos[turn], args.sin[turn], first);
        const int64_t of_head = static_cast<int64_t>(row + r) * args.heads + head;
        bf16* const to = joined ? static_cast<bf16*>(args.q) + of_head * width + args.kv_lora : args.q_rope + of_head * args.rope;
        to[i] = from_float<bf16>(v);
    }
    const bf16* const absorb = args.absorb + static_cast<int64_t>(head) * args.nope * args.kv_lora;
    const float scale = args.query_scale ? to_float(args.query_scale[head]) : 1.f;
    for (int column = threadIdx.x * 2; column < args.kv_lora; column += kThreads * 2) {
        float sums[kRows][2] = {};
#pragma unroll 8
        for (int i = 0; i < args.nope; ++i) {
            float w[2];
            load_floats<bf16, 2>(absorb + static_cast<int64_t>(i) * args.kv_lora + column, w);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                if (r >= rows) break;
                sums[r][0] += query[r][i] * w[0], sums[r][1] += query[r][i] * w[1];
            }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (r >= rows) break;
            const int64_t to = (static_cast<int64_t>(row + r) * args.heads + head) * width + column;
            if (args.query_scale) {
                const int low = to_int8(rounded(sums[r][0]) * scale), high = to_int8(rounded(sums[r][1]) * scale);
                *reinterpret_cast<uint16_t*>(static_cast<int8_t*>(args.q) + to) = static_cast<uint16_t>((low & 0xff) | (high & 0xff) << 8);
            } else {
                store_floats<bf16, 2>(static_cast<bf16*>(args.q) + to, sums[r]);
            }
        }
    }
}

#define KERNELS(name, format, W, Sum)                                                                                     \
    extern "C" __global__ void __launch_bounds__(kThreads) mla_##name##_##format(const __grid_constant__ Args args) {     \
        name<W, Sum>(args);                                                                                               \
    }

// prove mla_norm: 48 registers
// prove mla_latent: 56 registers
// prove mla_down_int8: 48 registers, LDG.E.EF.128, IDP.4A.S8.S8
// prove mla_heads_int8: 48 registers, LDG.E.EF.128, IDP.4A.S8.S8
// prove mla_down_bf16: 64 registers, LDG.E.EF.128
// prove mla_heads_bf16: 64 registers, LDG.E.EF.128
KERNELS(down, int8, Int8, int)
KERNELS(down, bf16, bf16, float)
KERNELS(heads, int8, Int8, int)
KERNELS(heads, bf16, bf16, float)
