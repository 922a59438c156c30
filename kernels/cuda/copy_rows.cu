// Whole rows of a pool onto others of its rows: blocks, slots, and the states that a commit moves, over all layers; and
// zeros onto rows, the states of sequences that have not begun.
//
// A block of threads takes one piece of one pair; a thread has four 16-byte moves under way at once.
#include "common.cuh"

struct Args {
    void* pool;            // [rows, row_bytes]
    const uint2* pairs;    // from, to
    int64_t row_bytes;
};

constexpr int kThreads = 128, kMoves = 4;

extern "C" __global__ void __launch_bounds__(kThreads) copy_rows(const __grid_constant__ Args args) {
    const uint2 pair = args.pairs[blockIdx.y];
    const char* const from = static_cast<const char*>(args.pool) + pair.x * args.row_bytes;
    char* const to = static_cast<char*>(args.pool) + pair.y * args.row_bytes;
    const int64_t start = ((int64_t)blockIdx.x * kMoves * kThreads + threadIdx.x) * 16;
    Vec16 moves[kMoves];
#pragma unroll
    for (int i = 0; i < kMoves; ++i) {
        const int64_t at = start + i * kThreads * 16;
        if (at < args.row_bytes) moves[i] = load_streamed(from + at);
    }
#pragma unroll
    for (int i = 0; i < kMoves; ++i) {
        const int64_t at = start + i * kThreads * 16;
        if (at < args.row_bytes) store_streamed(to + at, moves[i]);
    }
}

struct ZeroArgs {
    void* pool;             // [rows, row_bytes]
    const uint32_t* rows;
    int64_t row_bytes;
};

extern "C" __global__ void __launch_bounds__(kThreads) zero_rows(const __grid_constant__ ZeroArgs args) {
    char* const to = static_cast<char*>(args.pool) + args.rows[blockIdx.y] * args.row_bytes;
    const int64_t start = ((int64_t)blockIdx.x * kMoves * kThreads + threadIdx.x) * 16;
#pragma unroll
    for (int i = 0; i < kMoves; ++i) {
        const int64_t at = start + i * kThreads * 16;
        if (at < args.row_bytes) store_streamed(to + at, Vec16{});
    }
}

// prove zero_rows: 40 registers, STG.E.EF.128
// prove copy_rows: 40 registers, LDG.E.EF.128, STG.E.EF.128
