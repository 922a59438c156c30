//! The bytes that caches get, and the blocks that they must give.

use cacheplan_planner::engines::Version;
use cacheplan_planner::logs::failures::SHARE_IS_TAKEN;
use cacheplan_planner::{ByteSize, PlanRequest};

use super::super::rules::lists;
use super::super::{Limits, Question};
use super::attention;
use super::graphs::Graphs;
use crate::error::ServeError;
use crate::remedy::Remedy;

/// What is taken of a device before anything is allocated, at least: 21.84 of an L4's 22.03 GiB were free, the most of public starts.
const TAKEN: u64 = (2203 - 2184) * (1 << 30) / 100;
/// Merged after 0.18.0 (vllm-project/vllm#38270): graphs of decoding are captured only where every sequence has a block for its state.
const CAPTURES_WITH_STATES: Version = Version(0, 19, 0);
/// From here on graphs are estimated and left free before caches are sized, as its own message says; before they came on top.
const COUNTS_GRAPHS: Version = Version(0, 21, 0);
/// Builds for CPUs alone read it: GiB of caches (`platforms/cpu.py`). They capture no graphs, and have no device.
const CPU_SPACE: &str = "VLLM_CPU_KVCACHE_SPACE";
/// Seen in 0.22.1, 0.28.1 and 0.29.0: blocks of 128 tokens on CPUs.
const LARGE_BLOCKS_ON_CPUS: Version = Version(0, 22, 0);

/// The share of the device, or the bytes that are stated.
pub(super) fn memory(question: &mut Question) -> Result<(), ServeError> {
    const FLAG: &str = "--gpu-memory-utilization";
    let usual = question.default(FLAG).unwrap_or("0.9").to_owned();
    let number = question.share(FLAG).unwrap_or_else(|| usual.parse().unwrap_or(0.9));
    if !(number > 0.0 && number <= 1.0) {
        let said = format!(
            "gpu_memory_utilization: Input should be greater than 0 and less than or equal to 1 (it is {number})"
        );
        let percent = (number > 1.0 && number <= 100.0).then(|| Remedy::Set(FLAG, (number / 100.0).to_string()));
        return Err(question.refused(said, percent.into_iter().chain([Remedy::Set(FLAG, usual)])));
    }
    if let Some(space) = cpu_space(question) {
        if question.engine.version >= LARGE_BLOCKS_ON_CPUS {
            question.default_of("engine.block_size", 128);
        }
        // What none at all leaves was not read.
        if let Some(bytes) = space.checked_mul(1 << 30).filter(|bytes| *bytes > 0) {
            question.default_of("engine.cache_bytes", bytes);
        }
    }
    let Some(total) = question.device().map(|device| device.total_bytes) else { return Ok(()) };
    const BYTES: &str = "--kv-cache-memory-bytes";
    if let Some(bytes) = question.count(BYTES).filter(|bytes| *bytes > total) {
        let (bytes, total) = (ByteSize(bytes), ByteSize(total));
        let said = format!("CUDA out of memory: {BYTES} states {bytes}, and GPU 0 has a total capacity of {total}");
        return Err(question.refused(said, [Remedy::Remove(BYTES)]));
    }
    if question.is_stated("engine.cache_bytes") {
        return Ok(());
    }
    if number * total as f64 > total.saturating_sub(TAKEN) as f64 {
        let said = format!(
            "Free memory on device cuda:0 on startup {SHARE_IS_TAKEN} ({number}, {:.2} GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
            number * total as f64 / f64::from(1 << 30)
        );
        return Err(question.refused(said, [Remedy::Set(FLAG, "0.95".into())]));
    }
    question.share_of_device(number);
    question.default_of("memory.of", "total");
    let by_variable = question.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS").map(|value| value.trim() != "0");
    let counts_graphs = by_variable.unwrap_or(question.engine.version >= COUNTS_GRAPHS);
    if Graphs::are_none(question) || !counts_graphs {
        question.default_of("memory.graphs", "0B");
    }
    if let Some(size) = question.share("--kv-offloading-size") {
        question
            .notes
            .push(format!("{size} GiB of host memory are beside these caches and hold none of the sequences that run"));
    }
    Ok(())
}

/// GiB of caches on a CPU; none on a device, where nothing reads the variable.
fn cpu_space(question: &Question) -> Option<u64> {
    let space = question.env.get(CPU_SPACE).filter(|_| question.device().is_none())?;
    space.trim().parse().ok()
}

/// Blocks that there are at least where it starts: one for the state of each sequence whose decoding is captured as a whole. With drafts
/// kernels that capture steps of one token alone leave that out (`_cudagraph_support`).
pub(in super::super) fn least_blocks(question: &Question, request: &PlanRequest, limits: &Limits) -> u64 {
    const OF_ONE_TOKEN: &str = "minimax minimax_text_01 minimax_m1";
    let by_type = lists(OF_ONE_TOKEN, &request.model().info().model_type);
    let by_kernel = attention::named(question).is_some_and(|kernel| lists("FLASHINFER HPC_ATTN", &kernel));
    let drafts = question.flag("--speculative-config").is_some() && (by_type || by_kernel);
    let on_cpu = cpu_space(question).is_some();
    let captures = Graphs::of(question) == Graphs::Full;
    let asks = question.engine.version >= CAPTURES_WITH_STATES && captures && !drafts && !on_cpu;
    limits.max_batch_size.filter(|_| asks).unwrap_or(0)
}
