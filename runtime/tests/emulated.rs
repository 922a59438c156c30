//! Whole models with every launch executed by the emulator: logits and tokens are those of Hugging Face's float32.
//!
//! It needs the PTX of the kernels, and is run by `cargo xtask cuda-prove`.

#[allow(dead_code, reason = "what the other executors need besides")]
#[path = "../../kernels/src/tests/cuda/emulate.rs"]
mod emulate;
#[allow(dead_code, reason = "what the other tests of these models need besides")]
#[path = "golden/harness.rs"]
mod harness;

use cacheplan_emulator::Options;
use cacheplan_kernels::{Backend, Buffer, Contents, Graph, KernelError, Launch, Launcher, Launches, PoolRows, Target};
use cacheplan_managers::book::{SequenceId, StepMetadata, Work};
use cacheplan_runtime::{Request, Session, SessionOptions};
use candle_core::{CpuStorage, D, Device, Storage, Tensor};
use harness::{BUDGET, Driven, Golden, assert_close, folder};
use rstest::rstest;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

const PREFILL: usize = 21;
const FIRST_CHUNK: usize = 13;

/// What the ops of a model did, on whatever threads they ran.
#[derive(Debug, Default)]
struct Record {
    /// Kernels that they were executed by, without their formats and sizes.
    executed: BTreeSet<String>,
    /// Ops that had no kernel for some of their operands.
    left: BTreeSet<String>,
    /// Launches in their order, with where their metadata was uploaded to.
    launches: Vec<(Launch, Vec<(&'static str, usize)>)>,
    /// How often a step's metadata was uploaded.
    uploads: usize,
    /// Ops that uploaded metadata of their own.
    uploading: BTreeSet<&'static str>,
    /// Steps that a device would have recorded.
    recorded: usize,
}

/// Executes launches on the CPU, and records them.
#[derive(Debug)]
struct Emulator {
    /// How approximate instructions are moved.
    perturb: u64,
    record: Mutex<Record>,
}

/// A session whose ops the emulator executes, and the emulator.
fn emulated(folder: &Path, budget: &str, perturb: u64) -> (Session, Arc<Emulator>) {
    let emulator = Arc::new(Emulator { perturb, record: Mutex::default() });
    let backend = Backend::Launching(emulator.clone());
    let session = Session::open(folder, SessionOptions { backend, ..harness::options(budget) }).unwrap();
    (session, emulator)
}

/// Where metadata lies that was uploaded with its step.
fn address(words: &Tensor) -> usize {
    let (storage, layout) = words.storage_and_layout();
    let Storage::Cpu(CpuStorage::U32(data)) = &*storage else { panic!("words on the CPU") };
    data[layout.start_offset()..].as_ptr().addr()
}

impl Emulator {
    /// What was recorded since it was last asked.
    fn take(&self) -> Record {
        std::mem::take(&mut self.record.lock().unwrap())
    }
}

impl Launcher for Emulator {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn target(&self) -> Result<Target, KernelError> {
        Ok(Target { processors: 4, shared_bytes: 227 << 10 })
    }

    fn launch(&self, op: &'static str, launches: &Launches<'_>) -> Result<Vec<Tensor>, KernelError> {
        let options = Options { order: 1, perturb: self.perturb, early_copies: false };
        let emulated = emulate::execute(launches, &options, |kernel| emulate::kernels()[kernel].clone());
        let mut record = self.record.lock().unwrap();
        for (launch, run) in launches.launches.iter().zip(&emulated.runs) {
            let reports: Vec<String> = run.reports.iter().map(ToString::to_string).collect();
            assert!(reports.is_empty(), "{op}, {} {:?}:\n{}", launch.kernel, launch.grid, reports.join("\n"));
            let name = launch.kernel.split(['_']).take(2).collect::<Vec<_>>().join("_");
            let uploaded = launches.buffers.iter().filter_map(|buffer| match &buffer.contents {
                Contents::Uploaded(words) => Some((buffer.name, address(words))),
                _ => None,
            });
            record.executed.insert(name);
            record.launches.push((launch.clone(), uploaded.collect()));
            let of_host = |contents: &Contents<'_>| {
                matches!(
                    contents,
                    Contents::Indices(_) | Contents::Lengths(_) | Contents::Slots(_) | Contents::Pairs(_)
                )
            };
            if launches.buffers.iter().any(|buffer| of_host(&buffer.contents)) {
                record.uploading.insert(op);
            }
        }
        Ok(emulated.outputs)
    }

    fn without_kernel(&self, op: &'static str) -> Result<(), KernelError> {
        self.record.lock().unwrap().left.insert(op.to_owned());
        Ok(())
    }

    fn upload(&self, memory: &Tensor, words: &[u32]) -> Result<(), KernelError> {
        self.record.lock().unwrap().uploads += 1;
        Ok(memory.slice_set(&Tensor::new(words, &Device::Cpu)?, 0, 0)?)
    }

    fn record(&self, _: &mut dyn FnMut()) -> Result<Option<Box<dyn Graph>>, KernelError> {
        self.record.lock().unwrap().recorded += 1;
        Ok(None)
    }
}

/// A prompt in two chunks, then tokens one by one; then the prompt at once, of more tokens than are stepped one by one.
#[rstest]
#[case("llama", "cache_write paged_attend rms_norm silu_product weighted_sum", "linear::linear", 1)]
#[case(
    "nemotron_h",
    "cache_write chunk_scan conv_prefill conv_state conv_update expert_rows expert_sums gated_norm paged_attend \
     rms_norm route_experts state_update weighted_sum zero_rows",
    "linear::linear",
    1
)]
#[case(
    "qwen3_next",
    "chunk_delta conv_prefill conv_state conv_update expert_rows expert_sums gated_norm linear_update paged_attend \
     pair_write rms_norm route_experts silu_product weighted_sum zero_rows",
    "linear::linear",
    1
)]
#[case(
    "deepseek_v3",
    "cache_write expert_rows expert_sums paged_attend rms_norm route_experts silu_product weighted_sum",
    "linear::linear",
    1
)]
#[case(
    "gpt_oss",
    "cache_write expert_rows expert_sums paged_attend rms_norm route_experts weighted_sum",
    "linear::linear",
    1
)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn models_give_their_golden_logits_and_tokens(
    #[case] model: &str,
    #[case] executed: &str,
    #[case] left: &str,
    #[case] recorded_steps: usize,
) {
    let (golden, (session, emulator)) = (Golden::load(model), emulated(&folder(model), BUDGET, 1));
    let ids = golden.ids("ids");
    let mut driven = Driven::of(session);
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
    let before = emulator.take();
    for step in 0..ids.len() - PREFILL {
        check(PREFILL + step..PREFILL + step + 1, &format!("decode{step}_logits"));
    }
    let Record { executed: kernels, left: ops, launches, uploads, uploading, recorded } = emulator.take();
    assert_eq!(recorded, recorded_steps);
    // Two chunks of the prompt, and then each token.
    assert_eq!((before.uploads, uploads), (2, ids.len() - PREFILL));
    // All steps of a bucket are the same but for what was uploaded, to the same place; most of them were replayed.
    let steps: Vec<_> = launches.chunks(launches.len() / (ids.len() - PREFILL)).collect();
    assert_eq!(steps.len(), ids.len() - PREFILL);
    assert!(steps.iter().all(|step| *step == steps[0]));
    assert!(steps[0].iter().any(|(_, uploaded)| !uploaded.is_empty()));
    assert_eq!(uploading, BTreeSet::new(), "what uploads metadata of its own in a step");
    let sequence = driven.admit(PREFILL);
    assert_close(&driven.step(&[(sequence, &ids[..PREFILL])]), &golden.get("prefill_logits"), "prefill_logits");
    let prompt = emulator.take();
    let kernels = &(&kernels | &before.executed) | &prompt.executed;
    let ops = &(&ops | &before.left) | &prompt.left;
    let names = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!((names(&kernels).as_str(), names(&ops).as_str()), (executed, left));
}

/// A prompt at once, where channels decay and where decays are fixed, and what is generated behind it.
#[rstest]
#[case("kimi_linear", "chunk_kimi")]
#[case("minimax", "chunk_delta")]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn prompts_in_chunks_give_golden_logits_and_tokens(#[case] model: &str, #[case] chunks: &str) {
    let (golden, (session, emulator)) = (Golden::load(model), emulated(&folder(model), BUDGET, 1));
    let ids = golden.ids("long.input_ids");
    let mut driven = Driven::of(session);
    let sequence = driven.admit(ids.len());
    assert_close(&driven.step(&[(sequence, &ids)]), &golden.get("long.logits"), "long.logits");
    let expected = golden.ids("long.greedy");
    assert!(emulator.take().executed.contains(chunks));
    let (mut session, emulator) = emulated(&folder(model), BUDGET, 1);
    let generated = session.generate(&[Request::new(ids, expected.len())], false).unwrap();
    assert_eq!(generated.outputs[0].tokens, expected);
    assert!(emulator.take().executed.contains(chunks));
}

/// Experts in one tensor, of rows that are no whole vectors, between narrower rows, with biases.
#[rstest]
#[case("mixtral_stacked", "expert_rows expert_sums", "", 1)]
#[case("qwen3_moe_stacked", "expert_rows", "experts::products", 1)]
// Its other layers have states that no kernel was made for.
#[case("nemotron_h_latent_experts", "expert_sums", "experts::products", 0)]
#[case("gpt_oss_defaults", "expert_rows expert_sums", "", 1)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn steps_of_models_with_experts_are_recorded(
    #[case] variant: &str,
    #[case] executed: &str,
    #[case] left: &str,
    #[case] recorded_steps: usize,
) {
    let folder = folder("../variants").join(variant);
    let (golden, (session, emulator)) = (Golden::load_from(&folder), emulated(&folder, BUDGET, 1));
    let (ids, expected) = (golden.ids("ids"), golden.get("full_logits"));
    let mut driven = Driven::of(session);
    let sequence = driven.admit(ids.len() - 5);
    let mut done = 0;
    for step in [ids.len() - 5, 1, 1, 1, 1, 1] {
        let logits = driven.step(&[(sequence, &ids[done..done + step])]);
        assert_close(&logits, &expected.narrow(0, done, step).unwrap(), &format!("tokens from {done} on"));
        done += step;
    }
    let Record { executed: kernels, left: ops, recorded, .. } = emulator.take();
    assert_eq!(recorded, recorded_steps);
    let experts = |names: &BTreeSet<String>| {
        let names = names.iter().filter(|name| name.starts_with("expert")).cloned();
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!((experts(&kernels).as_str(), experts(&ops).as_str()), (executed, left));
}

/// The tokens that a step gives each of its sequences.
type Part<'a> = (SequenceId, &'a [u32]);

/// The logits of the last token of each sequence.
///
/// `plain` asks for the rows in another order: then a step that decodes is neither padded nor recorded.
fn step(session: &mut Session, parts: &[Part<'_>], plain: bool) -> Vec<Vec<f32>> {
    let (decoder, caches) = session.parts();
    let caches = caches.manager_mut().unwrap();
    let work: Vec<Work> =
        parts.iter().map(|&(sequence, tokens)| Work { sequence, tokens: tokens.len() as u32 }).collect();
    let mut metadata = StepMetadata::default();
    caches.step(&work, &mut metadata).unwrap();
    let tokens: Vec<u32> = parts.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
    let mut rows: Vec<u32> = metadata.last_rows().collect();
    if plain {
        rows.reverse();
    }
    let logits = decoder.forward(&tokens, &rows, caches, &metadata).unwrap();
    let mut logits: Vec<Vec<f32>> = logits.to_vec2().unwrap();
    if plain {
        logits.reverse();
    }
    logits
}

/// Blocks of 8 tokens, and more sequences than are stepped.
const WIDE: &str = "max_seq_len = 96\nmax_batch_size = 8\nmax_num_tokens = 64\ntokens_per_block = 8\n";

/// A session with prompts of these lengths in its caches, and its emulator.
///
/// Approximations are not moved: they are by the place of a block in its grid, which padding changes.
fn prompted(model: &str, lengths: &[usize]) -> (Session, Vec<SequenceId>, Arc<Emulator>) {
    let ids = Golden::load(model).ids("ids");
    let (mut session, emulator) = emulated(&folder(model), WIDE, 0);
    let caches = session.parts().1.manager_mut().unwrap();
    let sequences: Vec<SequenceId> = lengths.iter().map(|&length| caches.admit(length as u32 + 8).unwrap()).collect();
    let parts: Vec<Part<'_>> =
        sequences.iter().zip(lengths).map(|(&sequence, &length)| (sequence, &ids[..length])).collect();
    step(&mut session, &parts, false);
    (session, sequences, emulator)
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn a_padded_step_gives_the_bits_of_a_plain_one_and_leaves_other_sequences_alone(
    #[values("llama", "nemotron_h", "deepseek_v3")] model: &str,
) {
    let [mut padded, mut plain, mut untouched] = [(); 3].map(|()| prompted(model, &[5, 12, 9, 7]));
    let ids = Golden::load(model).ids("ids");
    let decode = |prompted: &mut (Session, Vec<SequenceId>, Arc<Emulator>), token: usize, is_plain: bool| {
        let (session, sequences, emulator) = prompted;
        let parts: Vec<Part<'_>> = sequences[..3].iter().map(|&sequence| (sequence, &ids[token..=token])).collect();
        emulator.take();
        (step(session, &parts, is_plain), emulator.take())
    };
    for token in 0..5 {
        let (found, padded) = decode(&mut padded, token, false);
        let (expected, plain) = decode(&mut plain, token, true);
        assert_eq!(found, expected, "token {token}");
        let grids = |record: &Record| record.launches.iter().map(|(launch, _)| launch.grid).collect::<Vec<_>>();
        assert_ne!(grids(&padded), grids(&plain), "four sequences are no three");
    }
    let [found, expected] = [&mut padded, &mut untouched]
        .map(|(session, sequences, _)| step(session, &[(sequences[3], &ids[7..8])], false));
    assert_eq!(found, expected);
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn generation_gives_the_golden_tokens_also_in_pools_that_were_made_anew() {
    let golden = Golden::load("qwen3");
    let request = |prompt: &str, count: usize| {
        let tokens = golden.ids(&format!("{prompt}.greedy"));
        let count = count.min(tokens.len());
        (Request::new(golden.ids(&format!("{prompt}.input_ids")), count), tokens[..count].to_vec())
    };
    let (requests, expected): (Vec<_>, Vec<_>) = [request("short", 6), request("long", 9)].into_iter().unzip();
    let (mut session, _) = emulated(&folder("qwen3"), BUDGET, 1);
    for _ in 0..2 {
        let outputs = session.generate(&requests, false).unwrap().outputs;
        assert_eq!(outputs.into_iter().map(|output| output.tokens).collect::<Vec<_>>(), expected);
        session.forget_prefixes().unwrap();
        let plan = session.plan().clone();
        session.parts().1.resize(&plan).unwrap();
    }
}

/// Experts of which each sees many rows are asked on the host.
#[rstest]
#[case::few(8, 1)]
#[case::many(9, 0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn steps_are_recorded_unless_experts_have_many_rows(#[case] sequences: usize, #[case] recorded: usize) {
    let budget = "max_seq_len = 16\nmax_batch_size = 16\nmax_num_tokens = 64\ntokens_per_block = 8\n";
    let (mut session, emulator) = emulated(&folder("deepseek_v3"), budget, 0);
    let caches = session.parts().1.manager_mut().unwrap();
    let sequences: Vec<SequenceId> = (0..sequences).map(|_| caches.admit(8).unwrap()).collect();
    emulator.take();
    let mut steps = Vec::new();
    for token in [[7], [8], [9]] {
        let parts: Vec<Part<'_>> = sequences.iter().map(|&sequence| (sequence, &token[..])).collect();
        steps.push(step(&mut session, &parts, false));
    }
    assert_eq!(emulator.take().recorded, recorded);
    // Sequences of the same tokens, each in a row of its own.
    assert!(steps.iter().all(|logits| logits.iter().all(|row| *row == logits[0])));
}
