//! Whole models with every launch executed by the emulator: logits and tokens are those of Hugging Face's float32.
//!
//! It needs the PTX of the kernels, and is run by `cargo xtask cuda-prove`.

#[path = "../../kernels/src/tests/cuda/emulate.rs"]
mod emulate;
#[allow(dead_code, reason = "what the other tests of these models need besides")]
#[path = "golden/harness.rs"]
mod harness;

use cacheplan_emulator::Options;
use cacheplan_kernels::{Contents, Device, Executor, Launches, PoolRows, execute_with};
use candle_core::{D, Tensor};
use harness::{Driven, Golden, assert_close};
use rstest::rstest;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

const PREFILL: usize = 21;
const FIRST_CHUNK: usize = 13;

/// What the ops of a model did, on whatever threads they ran.
#[derive(Default)]
struct Record {
    /// Kernels that they were executed by, without their formats and sizes.
    executed: BTreeSet<String>,
    /// Ops that had no kernel for some of their operands.
    left: BTreeSet<String>,
}

static RECORD: Mutex<Record> = Mutex::new(Record { executed: BTreeSet::new(), left: BTreeSet::new() });

/// Held by the model that is recorded.
static TURN: Mutex<()> = Mutex::new(());

struct Emulator;

impl Executor for Emulator {
    fn device(&self) -> Device {
        Device { processors: 4 }
    }

    fn execute(&self, op: &'static str, launches: &Launches<'_>) -> Vec<Tensor> {
        let options = Options { order: 1, perturb: 1, early_copies: false };
        let emulated = emulate::execute(launches, &options, |kernel| emulate::kernels()[kernel].clone());
        for (launch, run) in launches.launches.iter().zip(&emulated.runs) {
            let reports: Vec<String> = run.reports.iter().map(ToString::to_string).collect();
            assert!(reports.is_empty(), "{op}, {} {:?}:\n{}", launch.kernel, launch.grid, reports.join("\n"));
            let name = launch.kernel.split(['_']).take(2).collect::<Vec<_>>().join("_");
            RECORD.lock().unwrap().executed.insert(name);
        }
        emulated.outputs
    }

    fn leave(&self, op: &'static str) {
        RECORD.lock().unwrap().left.insert(op.replace(' ', ""));
    }
}

/// A prompt in two chunks, then tokens one by one; and another prompt at once.
#[rstest]
#[case("llama", "cache_write paged_attend rms_norm silu_product weighted_sum", "linear::linear", "linear::linear")]
#[case(
    "nemotron_h",
    "cache_write conv_update gated_norm paged_attend rms_norm state_update weighted_sum zero_rows",
    "linear::linear",
    "linear::linear mamba2::mamba2_scan"
)]
// Four rotated elements are no whole vectors.
#[case(
    "qwen3_next",
    "conv_update gated_norm linear_update paged_attend rms_norm silu_product weighted_sum zero_rows",
    "kv_cache::write linear::linear rope::apply",
    "kv_cache::write linear::linear linear_attention::linear_attention rope::apply"
)]
#[case(
    "deepseek_v3",
    "cache_write paged_attend rms_norm silu_product weighted_sum",
    "linear::linear",
    "linear::linear"
)]
fn models_give_their_golden_logits_and_tokens(
    #[case] model: &str,
    #[case] executed: &str,
    #[case] left: &str,
    #[case] left_of_prompt: &str,
) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    execute_with(Box::new(Emulator));
    let golden = Golden::load(model);
    let ids = golden.ids("ids");
    let mut driven = Driven::open(model);
    let sequence = driven.admit(FIRST_CHUNK);
    driven.step(&[(sequence, &ids[..FIRST_CHUNK])]);
    let mut check = |tokens: Range<usize>, name: &str| {
        let (found, expected) = (driven.step(&[(sequence, &ids[tokens])]), golden.get(name));
        assert_close(&found, &expected, name);
        let [found, expected] =
            [&found, &expected].map(|logits| logits.argmax(D::Minus1).unwrap().to_vec1::<u32>().unwrap());
        assert_eq!(found, expected, "{name}");
    };
    check(FIRST_CHUNK..PREFILL, "chunk1_logits");
    for step in 0..ids.len() - PREFILL {
        check(PREFILL + step..PREFILL + step + 1, &format!("decode{step}_logits"));
    }
    let names = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(" ");
    let Record { executed: kernels, left: ops } = std::mem::take(&mut *RECORD.lock().unwrap());
    assert_eq!((names(&kernels).as_str(), names(&ops).as_str()), (executed, left));
    let sequence = driven.admit(PREFILL);
    assert_close(&driven.step(&[(sequence, &ids[..PREFILL])]), &golden.get("prefill_logits"), "prefill_logits");
    let ops = std::mem::take(&mut *RECORD.lock().unwrap()).left;
    assert_eq!(names(&ops), left_of_prompt, "of a prompt of more than 16 tokens");
}
