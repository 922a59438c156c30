//! Times `MlaPreprocess` at the sizes of DeepSeek-V3, as one pass and as a chain of candle's ops, in turns:
//! `cargo bench -p cacheplan-kernels --bench fused`.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use cacheplan_kernels::cases::{Data, Latents};
use cacheplan_kernels::{Backend, MlaCacheMode, MlaQuantMode, MlaShape};
use candle_core::{DType, Device};
use std::time::Instant;

const SHAPE: MlaShape = MlaShape { hidden: 7168, heads: 128, q_lora: Some(1536), kv_lora: 512, nope: 128, rope: 64 };
const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backends = [Backend::Cpu, Backend::Candle(Device::Cpu)];
    println!(
        "{:<22} {:>6} {:>12} {:>12} {:>18}",
        "quantised", "tokens", "one pass, ms", "chain, ms", "ratio of each pair"
    );
    for quant_mode in [MlaQuantMode::PerTensorAsymmetric, MlaQuantMode::PerTokenSymmetric, MlaQuantMode::Unquantised] {
        for tokens in [1, 16, 128] {
            let of = Latents { shape: SHAPE, quant_mode, cache_mode: MlaCacheMode::KropeCtkv, input: DType::BF16 };
            let call = (of.case(tokens).prepare)(&mut Data::random(7))?;
            let time = |on: &Backend| -> Result<f64, Box<dyn std::error::Error>> {
                let begin = Instant::now();
                call(&on.run())?;
                Ok(begin.elapsed().as_secs_f64() * 1e3)
            };
            backends.iter().try_for_each(|on| time(on).map(|_| ()))?;
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                let [one, chain] = [time(&backends[0])?, time(&backends[1])?];
                rounds.push([one, chain, chain / one]);
            }
            let column = |of: usize| {
                let mut column: Vec<f64> = rounds.iter().map(|round| round[of]).collect();
                column.sort_by(f64::total_cmp);
                (column[0], column[ROUNDS / 2], column[ROUNDS - 1])
            };
            let ((_, one, _), (_, chain, _), (low, ratio, high)) = (column(0), column(1), column(2));
            let mode = format!("{quant_mode:?}");
            println!("{mode:<22} {tokens:>6} {one:>12.2} {chain:>12.2} {ratio:>6.1} ({low:.1} to {high:.1})");
        }
    }
    Ok(())
}
