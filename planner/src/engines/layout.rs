//! A layout as an engine is told it: the program, and the flags by the names that its parser has for them.

use cacheplan_handlers::DType;

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
}

/// A flag and its value; a switch has none.
pub type LayoutFlag = (&'static str, Option<String>);

/// How one engine is told.
pub(super) struct Told {
    /// The program, up to the model's name.
    pub(super) program: &'static str,
    /// The flags that divide a model.
    pub(super) sizes: &'static [&'static str],
    /// What it is told; `None` of what it cannot be told.
    pub(super) flags: fn(&Layout) -> Option<Vec<LayoutFlag>>,
}

pub(super) static VLLM: Told = Told {
    program: "vllm serve",
    sizes: &["--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--enable-expert-parallel"],
    flags: |layout| {
        let Parallel { tp, pp, dp, ep, .. } = layout.parallel;
        let mut flags = sizes(VLLM.sizes, &[tp, pp, dp]);
        flags.extend((ep > 1).then_some(("--enable-expert-parallel", None)));
        flags.extend(layout.kv_dtype.map(|_| ("--kv-cache-dtype", Some("fp8".to_owned()))));
        flags.extend(layout.state_dtype.map(|_| ("--mamba-ssm-cache-dtype", Some("bfloat16".to_owned()))));
        flags.extend([count("--max-model-len", layout.context), count("--max-num-seqs", layout.of_replica())]);
        Some(flags)
    },
};

pub(super) static SGLANG: Told = Told {
    program: "python -m sglang.launch_server --model-path",
    sizes: &["--tp-size", "--pp-size", "--dp-size", "--ep-size"],
    flags: |layout| {
        let Parallel { tp, pp, dp, ep, .. } = layout.parallel;
        // Its experts are divided over the ranks of one replica.
        if ep > 1 && (ep != tp || dp > 1) {
            return None;
        }
        let mut flags = sizes(SGLANG.sizes, &[tp, pp, dp, ep]);
        flags.extend(layout.kv_dtype.map(|_| ("--kv-cache-dtype", Some("fp8_e4m3".to_owned()))));
        flags.extend(layout.state_dtype.map(|_| ("--mamba-ssm-dtype", Some("bfloat16".to_owned()))));
        flags.extend([count("--context-length", layout.context), count("--max-running-requests", layout.of_replica())]);
        Some(flags)
    },
};

pub(super) static TENSORRT_LLM: Told = Told {
    program: "trtllm-serve",
    sizes: &["--tensor_parallel_size", "--pipeline_parallel_size", "--moe_expert_parallel_size"],
    flags: |layout| {
        let Parallel { tp, pp, dp, ep, .. } = layout.parallel;
        // Its file of options says dtypes, its flags do not; replicas are started one by one.
        let is_told = layout.kv_dtype.is_none() && layout.state_dtype.is_none() && dp == 1;
        let mut flags = sizes(TENSORRT_LLM.sizes, &[tp, pp, ep]);
        flags.extend([count("--max_seq_len", layout.context), count("--max_batch_size", layout.sequences)]);
        is_told.then_some(flags)
    },
};

pub(super) static LLAMA_CPP: Told = Told {
    program: "llama-server -m",
    sizes: &[],
    flags: |layout| {
        // It divides a model over devices by its layers alone, and takes the cells of all sequences at its start.
        if layout.parallel.world_size() > 1 || layout.state_dtype.is_some() {
            return None;
        }
        let cells = layout.context.saturating_mul(layout.sequences.max(1));
        let mut flags = vec![count("--ctx-size", cells), count("--parallel", layout.sequences)];
        if let Some(dtype) = layout.kv_dtype {
            let name = dtype.to_string();
            flags.extend([("--cache-type-k", Some(name.clone())), ("--cache-type-v", Some(name))]);
            // Values of fewer bits are read by no other attention.
            flags.push(("--flash-attn", Some("on".to_owned())));
        }
        Some(flags)
    },
};

impl Layout {
    fn of_replica(&self) -> u64 {
        self.sequences.div_ceil(self.parallel.dp.into())
    }
}

/// The sizes that divide anything.
fn sizes(names: &[&'static str], sizes: &[u32]) -> Vec<LayoutFlag> {
    let divides = names.iter().zip(sizes).filter(|(_, size)| **size > 1);
    divides.map(|(name, size)| (*name, Some(size.to_string()))).collect()
}

fn count(name: &'static str, count: u64) -> LayoutFlag {
    (name, Some(count.max(1).to_string()))
}
