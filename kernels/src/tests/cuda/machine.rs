//! `machine.cu`, with which the runner measures a device.

use super::emulate;
use crate::{Argument, Buffer, Contents, Launch, Launches};
use cacheplan_emulator::Options;
use candle_core::{DType, Tensor};
use rstest::rstest;

/// What `machine.cu` names `kSums`, and its threads.
const SUMS: usize = 8;
const THREADS: usize = 256;

fn launches<'a>(kernel: &str, blocks: usize, buffers: Vec<Buffer<'a>>, last: Argument) -> Launches<'a> {
    let pointers = (0..buffers.len()).map(|buffer| Argument::Pointer(Some(buffer)));
    let launch = Launch {
        kernel: kernel.to_owned(),
        grid: [blocks as u32, 1, 1],
        threads: THREADS as u32,
        shared_bytes: 0,
        arguments: pointers.chain([last]).collect(),
    };
    Launches { buffers, launches: vec![launch] }
}

/// Every vector, whatever their number: the one that it looks for in any of them, and all of their bytes.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn machine_reads_all_of_a_memory(#[values(1, 511, 513, 2000)] vectors: usize, #[values(false, true)] last: bool) {
    const SOUGHT: u32 = 0xdead_beef;
    let mut words = vec![0; 4 * vectors];
    words[if last { 4 * vectors - 1 } else { 2 }] = SOUGHT;
    let buffers = vec![
        Buffer { name: "memory", contents: Contents::Lengths((&words).into()) },
        Buffer { name: "sum", contents: Contents::Output(DType::U32, vec![1]) },
    ];
    let run = emulate(&launches("read_memory", 2, buffers, Argument::I64(vectors as i64)), &Options::default());
    assert_eq!(run.outputs[0].to_vec1::<u32>().unwrap(), [SOUGHT]);
    let stats = &run.runs[0].stats;
    assert_eq!(stats.moved_bytes(), 16 * vectors as u64 + 4, "all is read, and once");
    assert!(stats.sector_ratio() <= 1.02, "{} of {} sectors", stats.sectors, stats.ideal_sectors);
}

/// Ones times ones: every lane has every sum of every round. Where numbers stand is held to in the runner.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn machine_multiplies_every_round(#[values(0, 1, 5)] rounds: usize) {
    let ones = vec![0x3f80_3f80; 32 * 2 * SUMS];
    let buffers = vec![
        Buffer { name: "left", contents: Contents::Lengths((&ones[..32 * 4]).into()) },
        Buffer { name: "right", contents: Contents::Lengths((&ones).into()) },
        Buffer { name: "out", contents: Contents::Output(DType::F32, vec![2 * THREADS, 4]) },
    ];
    let run = emulate(&launches("matrix_peak", 2, buffers, Argument::I32(rounds as i32)), &Options::default());
    let found: Tensor = run.outputs[0].flatten_all().unwrap();
    let expected = (16 * SUMS * rounds) as f32;
    assert_eq!(found.to_vec1::<f32>().unwrap(), vec![expected; 2 * THREADS * 4]);
    // Nothing but products is in the loop, as far as the rate of other instructions could count.
    let (products, warps) = ((SUMS * rounds) as u64, 2 * (THREADS / 32) as u64);
    let found = run.runs[0].stats.warp_instructions / warps;
    assert!(found <= 120 + 2 * products, "{found} instructions of a warp for {products} products");
}
