//! A layout as an engine is told it: the program, and the flags by the names that its parser has for them.

use cacheplan_handlers::DType;

use super::flags;
use crate::budget::Dtypes;
use crate::export::input::Class;
use crate::parallel::Parallel;

/// How a model is divided, in which dtypes its caches are kept, and how many sequences of which length it serves.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// How it is divided.
    pub parallel: Parallel,
    /// The element type of keys and values; that of the model where absent.
    pub kv_dtype: Option<DType>,
    /// The element type of recurrent states; that of the model where absent.
    pub state_dtype: Option<DType>,
    /// Tokens of a sequence.
    pub context: u64,
    /// Sequences at once, over all replicas.
    pub sequences: u64,
    /// Whether the engine makes 8 bits of the weights as it loads them.
    pub quantizes: bool,
    /// Whether the model has routed experts.
    pub experts: bool,
}

/// A flag and its value; a switch has none.
pub type LayoutFlag = (&'static str, Option<String>);

/// How one engine is told.
pub(super) struct Told {
    /// The program, up to the model's name.
    pub(super) program: &'static str,
    /// The flags that divide a model and are left out where a layout needs them not, that of tensor parallel ranks first.
    pub(super) sizes: &'static [&'static str],
    /// The flag for the tokens of a sequence.
    pub(super) length: &'static str,
    /// The flag for the sequences at once.
    pub(super) sequences: &'static str,
    /// The flag by which it makes 8 bits of weights that a checkpoint has in full, where there is one.
    pub(super) quantizes: Option<(&'static str, &'static str)>,
    /// What it is told; `None` of what it cannot be told.
    pub(super) flags: fn(&Layout) -> Option<Vec<LayoutFlag>>,
}

/// Of a checkpoint in 16 bits.
const FP8: (&str, &str) = ("--quantization", "fp8");

pub(super) static VLLM: Told = Told {
    program: "vllm serve",
    sizes: &["--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--enable-expert-parallel"],
    length: "--max-model-len",
    sequences: "--max-num-seqs",
    quantizes: Some(FP8),
    flags: |layout| {
        let Parallel { tp, pp, dp, ep, .. } = layout.parallel;
        // Replicas of one command divide the experts of each layer among them, whole or not.
        if layout.experts && !layout.parallel.shares_experts() {
            return None;
        }
        let mut told = sizes(VLLM.sizes, &[tp, pp, dp]);
        told.extend((ep > 1).then_some(("--enable-expert-parallel", None)));
        told.extend(quantized(&VLLM, layout)?);
        // Its word for 8 bits is that for a sparse latent's records too.
        let kv = |dtype| if dtype == DType::F8E4m3 { Some("fp8") } else { flags::VLLM.word(Class::Kv, dtype) };
        told.extend(told_dtype("--kv-cache-dtype", layout.kv_dtype, kv)?);
        let state = |dtype| flags::VLLM.word(Class::Ssm, dtype);
        told.extend(told_dtype("--mamba-ssm-cache-dtype", layout.state_dtype, state)?);
        told.extend([count(VLLM.length, layout.context), count(VLLM.sequences, layout.of_replica())]);
        Some(told)
    },
};

pub(super) static SGLANG: Told = Told {
    program: "python -m sglang.launch_server --model-path",
    sizes: &["--tp-size", "--pp-size", "--dp-size", ATTENTION_REPLICAS, "--attn-dp-size"],
    length: "--context-length",
    sequences: "--max-running-requests",
    quantizes: Some(FP8),
    flags: |layout| {
        let Parallel { tp, pp, dp, ep, .. } = layout.parallel;
        // Replicas that share experts are those of the attention among all ranks, whose experts a command divides whole or not.
        let shares = layout.has_attention_replicas();
        if !shares && !tp.is_multiple_of(ep) {
            return None;
        }
        let mut told = sizes(SGLANG.sizes, &[if shares { tp.saturating_mul(dp) } else { tp }, pp, dp]);
        told.extend(shares.then_some((ATTENTION_REPLICAS, None)));
        told.extend((ep > 1 && !shares).then(|| ("--ep-size", Some(ep.to_string()))));
        told.extend(quantized(&SGLANG, layout)?);
        let word = |of| move |dtype| flags::SGLANG.word(of, dtype);
        told.extend(told_dtype("--kv-cache-dtype", layout.kv_dtype, word(Class::Kv))?);
        told.extend(told_dtype("--mamba-ssm-dtype", layout.state_dtype, word(Class::Ssm))?);
        // What is said of them at once each of these replicas has its part of.
        let sequences = if shares { layout.of_replica().saturating_mul(dp.into()) } else { layout.of_replica() };
        told.extend([count(SGLANG.length, layout.context), count(SGLANG.sequences, sequences)]);
        Some(told)
    },
};

/// SGLang's replicas of the attention alone.
const ATTENTION_REPLICAS: &str = "--enable-dp-attention";

pub(super) static TENSORRT_LLM: Told = Told {
    program: "trtllm-serve",
    sizes: &["--tensor_parallel_size", "--pipeline_parallel_size", "--moe_expert_parallel_size"],
    length: "--max_seq_len",
    sequences: "--max_batch_size",
    quantizes: None,
    flags: |layout| {
        let Parallel { tp, pp, dp, ep, .. } = layout.parallel;
        // Its file of options says dtypes, its flags do not; replicas are started one by one.
        let is_told = layout.kv_dtype.is_none() && layout.state_dtype.is_none() && dp == 1 && !layout.quantizes;
        let mut told = sizes(TENSORRT_LLM.sizes, &[tp, pp, ep]);
        told.extend([count(TENSORRT_LLM.length, layout.context), count(TENSORRT_LLM.sequences, layout.sequences)]);
        is_told.then_some(told)
    },
};

pub(super) static LLAMA_CPP: Told = Told {
    program: "llama-server -m",
    sizes: &[],
    length: "--ctx-size",
    sequences: "--parallel",
    quantizes: None,
    flags: |layout| {
        // It divides a model over devices by its layers alone, and takes the cells of all sequences at its start.
        if layout.parallel.world_size() > 1 || layout.state_dtype.is_some() || layout.quantizes {
            return None;
        }
        let cells = layout.context.saturating_mul(layout.sequences.max(1));
        let mut told = vec![count(LLAMA_CPP.length, cells), count(LLAMA_CPP.sequences, layout.sequences)];
        if let Some(dtype) = layout.kv_dtype {
            let name = dtype.to_string();
            told.extend([("--cache-type-k", Some(name.clone())), ("--cache-type-v", Some(name))]);
            // Values of fewer bits are read by no other attention.
            told.push(("--flash-attn", Some("on".to_owned())));
        }
        Some(told)
    },
};

impl Layout {
    /// So many sequences of so many tokens on one device, in the dtypes that are stated.
    pub fn alone(context: u64, sequences: u64, stated: Dtypes) -> Self {
        let parallel = Parallel::default();
        let (kv_dtype, state_dtype) = (stated.kv, stated.ssm);
        Self { parallel, kv_dtype, state_dtype, context, sequences, quantizes: false, experts: false }
    }

    /// Whether its replicas are of the attention alone, as experts are divided over the ranks of all.
    fn has_attention_replicas(&self) -> bool {
        self.parallel.dp > 1 && self.parallel.ep > 1 && self.parallel.shares_experts()
    }

    fn of_replica(&self) -> u64 {
        self.sequences.div_ceil(self.parallel.dp.into())
    }
}

/// The sizes that divide anything.
fn sizes(names: &[&'static str], sizes: &[u32]) -> Vec<LayoutFlag> {
    let divides = names.iter().zip(sizes).filter(|(_, size)| **size > 1);
    divides.map(|(name, size)| (*name, Some(size.to_string()))).collect()
}

/// What makes 8 bits of the weights, where it is told to; `None` where it cannot.
fn quantized(engine: &Told, layout: &Layout) -> Option<Option<LayoutFlag>> {
    match (layout.quantizes, engine.quantizes) {
        (false, _) => Some(None),
        (true, of) => of.map(|(name, word)| Some((name, Some(word.to_owned())))),
    }
}

/// A dtype as the engine calls it; `None` of one that it has no word for.
fn told_dtype(
    name: &'static str,
    dtype: Option<DType>,
    word: impl Fn(DType) -> Option<&'static str>,
) -> Option<Option<LayoutFlag>> {
    match dtype {
        None => Some(None),
        Some(dtype) => word(dtype).map(|word| Some((name, Some(word.to_owned())))),
    }
}

fn count(name: &'static str, count: u64) -> LayoutFlag {
    (name, Some(count.max(1).to_string()))
}
