//! What a device can do: the rate of a copy, and of products of matrices.

use crate::gpu::Measured;
use crate::machine::{Fault, Machine};
use cacheplan_kernels::cases::Work;
use cacheplan_kernels::{Argument, Buffer, Contents, Launch, Launches};
use candle_core::DType;
use serde::Serialize;
use std::fmt;

/// Rates that were measured before anything else.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Limits {
    /// Bytes read and written, of the faster of a kernel of ours and the driver.
    pub(super) copy_bytes_per_second: f64,
    pub(super) driver_copy_bytes_per_second: f64,
    /// Of bf16 products on registers, by `mma.sync`.
    pub(super) matmul_flops_per_second: f64,
}

/// Bytes of the copy, many times what caches hold.
const COPY: usize = 1 << 30;
/// What `machine.cu` names `kSums`, its threads, and the operations of a product of 16 x 8 x 16.
const SUMS: usize = 8;
const THREADS: usize = 256;
const PRODUCT: usize = 2 * 16 * 8 * 16;

impl Limits {
    pub(super) fn measure(device: &Measured, processors: usize) -> Result<Self, Fault> {
        let driver_copy = 2.0 * COPY as f64 / device.driver_copy(COPY)?;
        let own_copy = 2.0 * COPY as f64 / time(device, &copy())?;
        let (left, right) = operands();
        let (blocks, rounds) = (4 * processors, 1 << 14);
        let products = blocks * THREADS / 32 * rounds * SUMS;
        let seconds = time(device, &multiply(&left, &right, blocks, rounds))?;
        Ok(Self {
            copy_bytes_per_second: driver_copy.max(own_copy),
            driver_copy_bytes_per_second: driver_copy,
            matmul_flops_per_second: (products * PRODUCT) as f64 / seconds,
        })
    }

    /// The least seconds that work takes, and the limit that says so.
    pub(super) fn floor(&self, work: Work) -> (f64, &'static str) {
        let copy = work.bytes as f64 / self.copy_bytes_per_second;
        let matmul = work.flops as f64 / self.matmul_flops_per_second;
        if copy >= matmul { (copy, "copy") } else { (matmul, "matmul") }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [copy, driver] = [self.copy_bytes_per_second, self.driver_copy_bytes_per_second].map(|rate| rate / 1e9);
        writeln!(f, "copy    {copy:.0} GB/s, read and written (the driver's own: {driver:.0})")?;
        writeln!(f, "matmul  {:.0} TFLOP/s of bf16 products on registers", self.matmul_flops_per_second / 1e12)
    }
}

fn time(device: &Measured, launches: &Launches<'_>) -> Result<f64, Fault> {
    Ok(device.execute(launches)?.cost.seconds.unwrap_or(f64::NAN))
}

/// A large copy by the kernel that copies blocks and slots.
fn copy() -> Launches<'static> {
    // Rows of 1 MiB, from the first half of the memory to the second.
    const ROW: usize = 1 << 20;
    const ROWS: usize = COPY / ROW;
    static PAIRS: std::sync::LazyLock<Vec<(u32, u32)>> =
        std::sync::LazyLock::new(|| (0..ROWS as u32).map(|row| (row, ROWS as u32 + row)).collect());
    let buffers = vec![
        Buffer { name: "memory", contents: Contents::Scratch(2 * COPY / 4) },
        Buffer { name: "pairs", contents: Contents::Pairs(&PAIRS) },
    ];
    let launch = Launch {
        kernel: "copy_rows".to_owned(),
        // Four vectors of 16 bytes to each of 128 threads.
        grid: [(ROW / (128 * 4 * 16)) as u32, ROWS as u32, 1],
        threads: 128,
        shared_bytes: 0,
        arguments: vec![Argument::Pointer(Some(0)), Argument::Pointer(Some(1)), Argument::I64(ROW as i64)],
    };
    Launches { buffers, launches: vec![launch] }
}

/// Operands as lanes hold them: words of two bf16.
fn operands() -> (Vec<u32>, Vec<u32>) {
    let mut state = 1u32;
    let mut word = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Signs and mantissas are random, magnitudes between 1 and 2: nothing overflows in so many sums.
        (state & 0x807f_807f) | 0x3f80_3f80
    };
    let words = |count: usize, word: &mut dyn FnMut() -> u32| (0..count).map(|_| word()).collect();
    (words(32 * 4, &mut word), words(32 * 2 * SUMS, &mut word))
}

fn multiply<'a>(left: &'a [u32], right: &'a [u32], blocks: usize, rounds: usize) -> Launches<'a> {
    let buffers = vec![
        Buffer { name: "left", contents: Contents::Lengths(left.into()) },
        Buffer { name: "right", contents: Contents::Lengths(right.into()) },
        Buffer { name: "out", contents: Contents::Output(DType::F32, vec![blocks * THREADS, 4]) },
    ];
    let pointers = (0..3).map(|buffer| Argument::Pointer(Some(buffer)));
    let launch = Launch {
        kernel: "matrix_peak".to_owned(),
        grid: [blocks as u32, 1, 1],
        threads: THREADS as u32,
        shared_bytes: 0,
        arguments: pointers.chain([Argument::I32(rounds as i32)]).collect(),
    };
    Launches { buffers, launches: vec![launch] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::Emulator;

    /// A word's two numbers.
    fn numbers(word: u32) -> [f64; 2] {
        [word << 16, word & 0xffff_0000].map(|bits| f64::from(f32::from_bits(bits)))
    }

    /// The kernel that the rate of products is taken with computes what it says: every lane, every sum, every round.
    #[test]
    fn the_rate_of_products_is_that_of_products() {
        const ROUNDS: usize = 3;
        let (left, right) = operands();
        let ran = Emulator::new(0, 1)
            .unwrap()
            .execute(&multiply(&left, &right, 1, ROUNDS))
            .unwrap_or_else(|fault| panic!("{}", fault.0));
        let found: Vec<Vec<f32>> = ran.outputs[0].to_vec2().unwrap();
        // As PTX lays them out: lane 4 r + c holds of the left operand rows r and r + 8 at columns 2 c and 2 c + 8, of the
        // right one rows 2 c and 2 c + 8 at column r, and of the result rows r and r + 8 at columns 2 c.
        let mut a = [[0.0; 16]; 16];
        let mut b = [[0.0; 8]; 16];
        for lane in 0..32 {
            let (r, c) = (lane / 4, lane % 4);
            for (word, (row, column)) in
                [(r, 2 * c), (r + 8, 2 * c), (r, 2 * c + 8), (r + 8, 2 * c + 8)].into_iter().enumerate()
            {
                let pair = numbers(left[4 * lane + word]);
                (a[row][column], a[row][column + 1]) = (pair[0], pair[1]);
            }
            for sum in 0..SUMS {
                for (word, row) in [2 * c, 2 * c + 8].into_iter().enumerate() {
                    let pair = numbers(right[2 * (32 * sum + lane) + word]);
                    b[row][r] += pair[0];
                    b[row + 1][r] += pair[1];
                }
            }
        }
        for (thread, out) in found.iter().enumerate() {
            let (r, c) = (thread % 32 / 4, thread % 4);
            for (at, (row, column)) in
                [(r, 2 * c), (r, 2 * c + 1), (r + 8, 2 * c), (r + 8, 2 * c + 1)].into_iter().enumerate()
            {
                let expected: f64 = (0..16).map(|k| a[row][k] * b[k][column]).sum::<f64>() * ROUNDS as f64;
                assert!((f64::from(out[at]) - expected).abs() < 1e-2, "{} for {expected}", out[at]);
            }
        }
    }

    #[test]
    fn the_copy_takes_all_of_the_memory() {
        let launch = &copy().launches[0];
        assert_eq!(launch.grid[0] as usize * 128 * 4 * 16 * launch.grid[1] as usize, COPY);
    }
}
