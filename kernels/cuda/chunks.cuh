// What kernels share that take a chunk of tokens at once.
//
// Matrix products are of numbers that are wider than operands: each is a sum of bf16 parts, an f16 of two, an f32 of
// three, and a product leaves out what the parts of the wider operand cannot express either.
#pragma once
#include "common.cuh"

template <typename T> constexpr int kParts = 1;
template <> constexpr int kParts<__half> = 2;
template <> constexpr int kParts<float> = 3;

// How many parts, as an argument.
template <int PARTS> struct Count {
    static constexpr int value = PARTS;
};

// A word of two numbers for each part.
template <int PARTS> DEVICE void split(float low, float high, uint32_t (&parts)[PARTS]) {
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const float both[2] = {low, high};
        parts[p] = Format<__nv_bfloat16>::narrow(both);
        float taken[2];
        Format<__nv_bfloat16>::widen(parts[p], taken);
        low -= taken[0], high -= taken[1];
    }
}

// Where an element lies in shared memory: chunk c of 16 bytes of row r at chunk c ^ r, so that the eight rows of a matrix
// lie in different banks. Of narrow rows several lie side by side in the banks, and have one r.
template <typename T, int WIDTH> DEVICE int swizzled(int row, int column) {
    constexpr int V = kPerVec<T>, CHUNKS = WIDTH / V < 8 ? WIDTH / V : 8;
    return row * WIDTH + ((column / V) ^ (row / (8 / CHUNKS) & (CHUNKS - 1))) * V + column % V;
}

// COUNT neighbouring elements of shared memory.
template <typename T, int COUNT> DEVICE void load_near(const T* from, float (&out)[COUNT]) {
    if constexpr (COUNT == 1) {
        out[0] = to_float(*from);
    } else {
        struct alignas(COUNT * sizeof(T)) Words {
            uint32_t words[COUNT * sizeof(T) / 4];
        };
        const Words near = *reinterpret_cast<const Words*>(from);
#pragma unroll
        for (int i = 0; i < COUNT / Format<T>::kPerWord; ++i) Format<T>::widen(near.words[i], out + i * Format<T>::kPerWord);
    }
}

// Rows of inputs into shared memory, zeros where there are none.
template <typename T, int WIDTH, int ROWS, int THREADS> DEVICE void fetch_rows(T* into, const T* source, int64_t stride, int rows, int columns) {
    constexpr int V = kPerVec<T>, VECS = WIDTH / V, AT_ONCE = THREADS / VECS;
    const int column = threadIdx.x % VECS * V;
    int row = threadIdx.x / VECS;
    T* to = into + swizzled<T, WIDTH>(row, column);
    const T* from = source + row * stride + column;
#pragma unroll 1
    for (; row < ROWS; row += AT_ONCE, to += AT_ONCE * WIDTH, from += AT_ONCE * stride) {
        const bool live = row < rows && column < columns;
        // Eight rows further all is swizzled alike.
        copy_async(AT_ONCE % 8 == 0 ? to : into + swizzled<T, WIDTH>(row, column), live ? from : source, live);
    }
}

// How an operand lies in shared memory: as rows of the left one [16, 16], or of the right one turned [two of 8, 16], or
// across them.
enum class Operand { kLeft, kLeftAcross, kRight, kRightAcross };

// Which, as an argument.
template <Operand KIND> struct Kind {
    static constexpr Operand value = KIND;
};

// The pairs of numbers of a lane in the four matrices of an operand whose first row and column these are.
template <typename T, int WIDTH, Operand KIND> DEVICE void load_words(uint32_t (&words)[4], const T* from, int row, int column, int lane) {
    static_assert(sizeof(T) == 2, "matrices of words");
    constexpr bool kAcross = KIND == Operand::kLeftAcross || KIND == Operand::kRightAcross;
    constexpr bool kRowsFirst = KIND == Operand::kLeft || KIND == Operand::kRightAcross;
    const int first = lane / 8 % 2 * 8, second = lane / 16 * 8;
    const T* const at = from + swizzled<T, WIDTH>(row + (kRowsFirst ? first : second) + lane % 8, column + (kRowsFirst ? second : first));
    if constexpr (kAcross) load_matrices_transposed(words, at);
    else load_matrices(words, at);
}
template <typename T, int WIDTH, Operand KIND> DEVICE void load_pairs(float (&pairs)[4][2], const T* from, int row, int column, int lane) {
    constexpr bool kAcross = KIND == Operand::kLeftAcross || KIND == Operand::kRightAcross;
    constexpr bool kRowsFirst = KIND == Operand::kLeft || KIND == Operand::kRightAcross;
    if constexpr (sizeof(T) == 2) {
        uint32_t words[4];
        load_words<T, WIDTH, KIND>(words, from, row, column, lane);
#pragma unroll
        for (int j = 0; j < 4; ++j) Format<T>::widen(words[j], pairs[j]);
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int first = j % 2 * 8, second = j / 2 * 8;
            const int r = row + (kRowsFirst ? first : second), c = column + (kRowsFirst ? second : first);
            if constexpr (kAcross) {
#pragma unroll
                for (int e = 0; e < 2; ++e) pairs[j][e] = from[swizzled<T, WIDTH>(r + lane % 4 * 2 + e, c + lane / 4)];
            } else {
                const float2 v = *reinterpret_cast<const float2*>(from + swizzled<T, WIDTH>(r + lane / 4, c + lane % 4 * 2));
                pairs[j][0] = v.x, pairs[j][1] = v.y;
            }
        }
    }
}
template <int PARTS> DEVICE void split_pairs(uint32_t (&parts)[PARTS][4], const float (&pairs)[4][2]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint32_t words[PARTS];
        split(pairs[j][0], pairs[j][1], words);
#pragma unroll
        for (int p = 0; p < PARTS; ++p) parts[p][j] = words[p];
    }
}
template <typename T, int WIDTH, Operand KIND> DEVICE void load_parts(uint32_t (&parts)[kParts<T>][4], const T* from, int row, int column, int lane) {
    if constexpr (kParts<T> == 1) {
        load_words<T, WIDTH, KIND>(parts[0], from, row, column, lane);
    } else {
        float pairs[4][2];
        load_pairs<T, WIDTH, KIND>(pairs, from, row, column, lane);
        split_pairs(parts, pairs);
    }
}

// d [16, 8] += a [16, 16] b [16, 8], where b is the first or the second of two. Of `a`, the first LEFT parts.
template <int LEFT = 3, int PA, int PB> DEVICE void multiply_parts(float (&d)[4], const uint32_t (&a)[PA][4], const uint32_t (&b)[PB][4], int which) {
    constexpr int kLeft = LEFT < PA ? LEFT : PA, kMost = kLeft > PB ? kLeft : PB;
#pragma unroll
    for (int i = kLeft - 1; i >= 0; --i)
#pragma unroll
        for (int j = PB - 1; j >= 0; --j)
            if (i + j < kMost) multiply<__nv_bfloat16>(d, a[i], b[j][which * 2], b[j][which * 2 + 1]);
}

// A sum of floats with what its rounding lost.
struct Sum {
    float high, low;
};
DEVICE Sum operator+(const Sum& a, const Sum& b) {
    const float high = a.high + b.high, taken = high - a.high;
    return {high, (a.high - (high - taken)) + (b.high - taken) + (a.low + b.low)};
}
// e to the difference of two.
DEVICE float exp_between(const Sum& to, const Sum& from) { return expf((to.high - from.high) + (to.low - from.low)); }

// Turns logarithms of decays, two of each lane, into their running sums over so many lanes, and returns the last.
template <int LANES> DEVICE Sum running_sums(Sum (&sum)[2], int lane) {
    // An infinite one would leave differences undefined; this one leaves nothing either. A NaN stays.
#pragma unroll
    for (int i = 0; i < 2; ++i) sum[i].high = sum[i].high < -1e6f ? -1e6f : sum[i].high;
    sum[1] = sum[0] + sum[1];
#pragma unroll
    for (int offset = 1; offset < LANES; offset *= 2) {
        const Sum before = {__shfl_up_sync(kAllLanes, sum[1].high, offset), __shfl_up_sync(kAllLanes, sum[1].low, offset)};
        if (lane % LANES >= offset) sum[0] = before + sum[0], sum[1] = before + sum[1];
    }
    const int last = lane | (LANES - 1);
    return {__shfl_sync(kAllLanes, sum[1].high, last), __shfl_sync(kAllLanes, sum[1].low, last)};
}

// The end of the chunk that begins at a row: so many tokens, or behind the first whose state is kept.
template <int TOKENS> DEVICE int chunk_end(const Writes& writes, int from, int end, int lane) {
    int to = min(from + TOKENS, end);
    if (writes.rows) {
#pragma unroll
        for (int i = TOKENS - 32; i >= 0; i -= 32) {
            const int row = from + i + lane;
            const uint32_t kept = __ballot_sync(kAllLanes, row < end && writes.rows[min(row, end - 1)] >= 0);
            if (kept) to = min(to, from + i + __clz(__brev(kept)) + 1);
        }
    }
    return to;
}
