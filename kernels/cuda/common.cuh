// What the kernels share: vectors of 16 bytes, number formats, sums over lanes. All inline PTX is here.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define DEVICE __device__ __forceinline__

// ---- Memory -----------------------------------------------------------------------------------------------------

struct alignas(16) Vec16 {
    uint32_t words[4];
};

// What is read or written once passes through the caches as the first to be evicted.
DEVICE Vec16 load_streamed(const void* from) {
    const uint4 v = __ldcs(static_cast<const uint4*>(from));
    return Vec16{{v.x, v.y, v.z, v.w}};
}
DEVICE void store_streamed(void* to, const Vec16& v) {
    __stcs(static_cast<uint4*>(to), make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]));
}

// ---- Number formats ---------------------------------------------------------------------------------------------

DEVICE uint32_t bits(__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); }
DEVICE uint32_t bits(__nv_bfloat162 v) { return *reinterpret_cast<const uint32_t*>(&v); }

// Pairs of half floats.
DEVICE uint32_t subtract_halves(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// An 8-bit float (e4m3) as its bits. The machine converts these from sm_89 on only, and one PTX serves all.
struct Fp8 {
    uint8_t code;
};

// A type: how many lie in a word, and what they are as f32.
template <typename T> struct Format;
template <> struct Format<float> {
    static constexpr int kPerWord = 1;
    static DEVICE void widen(uint32_t word, float* out) { out[0] = __uint_as_float(word); }
    static DEVICE uint32_t narrow(const float* in) { return __float_as_uint(in[0]); }
};
template <> struct Format<__half> {
    static constexpr int kPerWord = 2;
    static DEVICE void widen(uint32_t word, float* out) {
        const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&word));
        out[0] = v.x, out[1] = v.y;
    }
    static DEVICE uint32_t narrow(const float* in) { return bits(__floats2half2_rn(in[0], in[1])); }
};
template <> struct Format<__nv_bfloat16> {
    static constexpr int kPerWord = 2;
    static DEVICE void widen(uint32_t word, float* out) {
        out[0] = __uint_as_float(word << 16), out[1] = __uint_as_float(word & 0xffff0000u);
    }
    static DEVICE uint32_t narrow(const float* in) { return bits(__floats2bfloat162_rn(in[0], in[1])); }
};

template <> struct Format<Fp8> {
    static constexpr int kPerWord = 4;
    static constexpr float kLargest = 448.f;
    // The nearest, ties to even; what lies beyond the largest becomes that. Without its sign.
    static DEVICE uint32_t narrow_magnitude(float value) {
        const float magnitude = fminf(fabsf(value), kLargest);
        // Its power of two, or that of the smallest normal number. In front of 2^20 times as much the last place of an
        // f32 is the step between 8-bit numbers, so that the sum counts steps.
        const uint32_t power = max(__float_as_uint(magnitude) & 0x7f800000u, 121u << 23), far = power + (20u << 23);
        const uint32_t steps = __float_as_uint(magnitude + __uint_as_float(far)) - far;
        return steps + (power >> 20) - (121 << 3) + (value != value);
    }
    // Has the top bits of bytes that are no numbers, of kTops, and other bits.
    static constexpr uint32_t kTops = 0x80808080u;
    static DEVICE uint32_t not_numbers(uint32_t word) { return (word & ~kTops) + 0x01010101u; }
    // Bytes 0 and 2, and bytes 1 and 3, as half floats of which kHalves times as much is meant; what is no number gives one.
    // Exponents are 8 apart, and those of half floats have one bit more.
    static constexpr float kHalves = 256.f;
    static DEVICE void halves(uint32_t word, uint32_t& even, uint32_t& odd) {
        even = (word << 7 & 0x3f803f80u) | (word << 8 & 0x80008000u);
        odd = (word >> 1 & 0x3f803f80u) | (word & 0x80008000u);
    }
    static DEVICE void widen(uint32_t word, float* out) {
        uint32_t even, odd;
        halves(word, even, odd);
        float pairs[4];
        Format<__half>::widen(even, pairs), Format<__half>::widen(odd, pairs + 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = pairs[i % 2 * 2 + i / 2] * kHalves;
        if ((not_numbers(word) & kTops) != 0) {
            for (int i = 0; i < 4; ++i)
                if ((word >> 8 * i & 0x7f) == 0x7f) out[i] = NAN;
        }
    }
    static DEVICE uint32_t narrow(const float* in) {
        uint32_t codes[4], signs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) codes[i] = narrow_magnitude(in[i]), signs[i] = __float_as_uint(in[i]);
        const uint32_t code = __byte_perm(__byte_perm(codes[0], codes[1], 0x40), __byte_perm(codes[2], codes[3], 0x40), 0x5410);
        const uint32_t sign = __byte_perm(__byte_perm(signs[0], signs[1], 0x73), __byte_perm(signs[2], signs[3], 0x73), 0x5410);
        return code | (sign & 0x80808080u);
    }
};

// A signed byte.
struct Int8 {
    int8_t code;
};

template <> struct Format<Int8> {
    static constexpr int kPerWord = 4;
    static constexpr float kLargest = 127.f;
    static constexpr uint32_t kTops = 0;
    static DEVICE uint32_t not_numbers(uint32_t) { return 0; }
    // As for Fp8: the last places of half floats from 2^10 on, 128 too large.
    static constexpr float kHalves = 1.f;
    static DEVICE void halves(uint32_t word, uint32_t& even, uint32_t& odd) {
        const uint32_t raised = word ^ 0x80808080u;
        even = subtract_halves(__byte_perm(raised, 0x64646464u, 0x4240), 0x64806480u);
        odd = subtract_halves(__byte_perm(raised, 0x64646464u, 0x4341), 0x64806480u);
    }
    static DEVICE void widen(uint32_t word, float* out) {
        // As the last places of floats from 2^23 on, 128 too large.
        const uint32_t raised = word ^ 0x80808080u;
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = __uint_as_float(__byte_perm(raised, 0x4b000000u, 0x7650 | i)) - 8388736.f;
    }
    // The nearest, ties to even; what lies beyond the ends becomes them, and what is no number 0.
    static DEVICE uint32_t narrow(const float* in) {
        uint32_t codes[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) codes[i] = min(max(__float2int_rn(in[i]), -128), 127);
        return __byte_perm(__byte_perm(codes[0], codes[1], 0x40), __byte_perm(codes[2], codes[3], 0x40), 0x5410);
    }
};

// The power of two at or below a magnitude, and one that has an inverse for what is no number.
DEVICE float power_below(float magnitude) {
    return __uint_as_float(min(max(__float_as_uint(magnitude) & 0x7f800000u, 1u << 23), 253u << 23));
}

// Elements in 16 bytes.
template <typename T> constexpr int kPerVec = 16 / sizeof(T);

template <typename T> DEVICE void widen(const Vec16& v, float* out) {
#pragma unroll
    for (int i = 0; i < 4; ++i) Format<T>::widen(v.words[i], out + i * Format<T>::kPerWord);
}
template <typename T> DEVICE Vec16 narrow(const float* in) {
    Vec16 v;
#pragma unroll
    for (int i = 0; i < 4; ++i) v.words[i] = Format<T>::narrow(in + i * Format<T>::kPerWord);
    return v;
}

// COUNT elements as f32, by the widest loads that they fill. Their address is a multiple of their size, up to 16 bytes.
template <typename T, int COUNT> DEVICE void load_floats(const T* from, float* out) {
    static_assert(COUNT * sizeof(T) % 4 == 0, "whole words");
    constexpr int kWords = COUNT * sizeof(T) / 4;
    uint32_t words[kWords];
    if constexpr (kWords % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kWords / 4; ++i) {
            const uint4 v = __ldg(reinterpret_cast<const uint4*>(from) + i);
            words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
        }
    } else if constexpr (kWords % 2 == 0) {
#pragma unroll
        for (int i = 0; i < kWords / 2; ++i) {
            const uint2 v = __ldg(reinterpret_cast<const uint2*>(from) + i);
            words[2 * i] = v.x, words[2 * i + 1] = v.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < kWords; ++i) words[i] = __ldg(reinterpret_cast<const uint32_t*>(from) + i);
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) Format<T>::widen(words[i], out + i * Format<T>::kPerWord);
}

// COUNT elements from f32, by one store. Their address is a multiple of their size.
template <typename T, int COUNT> DEVICE void store_floats(T* to, const float* in) {
    constexpr int kWords = COUNT * sizeof(T) / 4, kPerWord = Format<T>::kPerWord;
    static_assert(kWords == 1 || kWords == 2 || kWords == 4, "one store");
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = Format<T>::narrow(in + i * kPerWord);
    if constexpr (kWords == 4) *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    if constexpr (kWords == 2) *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    if constexpr (kWords == 1) *reinterpret_cast<uint32_t*>(to) = words[0];
}

DEVICE float to_float(float v) { return v; }
DEVICE float to_float(__half v) { return __half2float(v); }
DEVICE float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T> DEVICE T from_float(float v);
template <> DEVICE float from_float<float>(float v) { return v; }
template <> DEVICE __half from_float<__half>(float v) { return __float2half_rn(v); }
template <> DEVICE __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

// ---- Lanes ------------------------------------------------------------------------------------------------------

constexpr uint32_t kAllLanes = 0xffffffffu;

// The sums of COUNT values over LANES neighbouring lanes, in COUNT - 1 + log2(LANES / COUNT) exchanges instead of
// COUNT * log2(LANES): with each exchange a lane keeps half of its values. A lane ends with the sum that `kept` names.
template <int COUNT, int LANES> DEVICE float sum_transposed(float (&values)[COUNT], int lane) {
    int count = COUNT;
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) {
        const bool upper = lane & offset;
        if (count > 1) {
            count /= 2;
#pragma unroll
            for (int j = 0; j < COUNT / 2; ++j)
                if (j < count) {
                    const float send = upper ? values[j] : values[j + count];
                    const float keep = upper ? values[j + count] : values[j];
                    values[j] = keep + __shfl_xor_sync(kAllLanes, send, offset);
                }
        } else {
            values[0] += __shfl_xor_sync(kAllLanes, values[0], offset);
        }
    }
    return values[0];
}
template <int COUNT, int LANES> DEVICE int kept(int lane) { return lane % LANES / (LANES / COUNT); }

// ---- Asynchronous copies and matrix products --------------------------------------------------------------------

DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// 16 bytes from global to shared memory; zeros where not `live`.
DEVICE void copy_async(void* to, const void* from, bool live) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(live ? 16 : 0) : "memory");
}
// 4 bytes; zero where not `live`.
DEVICE void copy_word_async(void* to, const void* from, bool live) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(live ? 4 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most OPEN groups are under way.
template <int OPEN> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory"); }

// Four matrices of 8 rows; lane 8 j + i names row i of matrix j.
DEVICE void load_matrices(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// d [16, 8] += a [16, 16] b [16, 8]
template <typename T> DEVICE void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <> DEVICE void multiply<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> DEVICE void multiply<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- States -----------------------------------------------------------------------------------------------------

// Which states a step leaves behind.
struct Writes {
    void* kept;               // [.., elems], of which the layer begins at `offset`: states after single tokens, or null
    const int32_t* rows;      // [tokens] row of `kept` for the state after each token, -1 for none; null: the token's own
    const int32_t* parents;   // [tokens] token that each follows, -1 for the slot of the sequence; null: the one before
    int64_t elems, offset;
    int32_t last, rounds;     // whether the slot receives the last state; whether each is rounded as a pool rounds it
};

// The state from which `row` starts where the thread does not hold it, as that of a sequence whose rows begin at `begin`.
template <typename T> DEVICE const T* state_before(const Writes& writes, const T* slot, int64_t inner, int begin, int row) {
    if (!writes.parents || row == begin) return nullptr;
    const int parent = writes.parents[row];
    if (parent == row - 1) return nullptr;
    if (parent < 0) return slot;
    const int64_t at = writes.rows ? writes.rows[parent] : parent;
    return static_cast<const T*>(writes.kept) + at * writes.elems + writes.offset + inner;
}

// Where the state after `row` goes, besides the slot.
template <typename T> DEVICE T* state_after(const Writes& writes, int64_t inner, int row) {
    if (!writes.kept) return nullptr;
    const int64_t at = writes.rows ? writes.rows[row] : row;
    return at < 0 ? nullptr : static_cast<T*>(writes.kept) + at * writes.elems + writes.offset + inner;
}

// ---- Functions --------------------------------------------------------------------------------------------------

// 2^x, and 0 where that is below the normal numbers: one instruction.
DEVICE float exp2_flushed(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float silu(float x) { return x / (1.f + expf(-x)); }
// A time step from what a projection and its bias give. A NaN stays one.
DEVICE float time_step(float dt, bool softplus, float low, float high) {
    if (softplus && dt <= 20.f) dt = log1pf(expf(dt));
    return dt < low ? low : dt > high ? high : dt;
}
// The larger number, or NaN where there is one.
DEVICE float larger(float a, float b) { return a > b || a != a ? a : b; }
