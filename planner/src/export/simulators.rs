//! What simulators of serving take of a plan: blocks, and the batches over them.
//!
//! llm-d-inference-sim: its fields of `pkg/common/config.go` at v0.10.2. Vidur: the dataclasses of
//! `vidur/config/config.py` at commit 7d47513, whose flags are the class's name and the field's.

use serde_json::{Map, Value, json};

use super::dialect::{Dialect, flag, own, plan};
use super::file::quoted;
use super::input::{Input, Sourced, listed};
use super::target_file::TargetFile;
use crate::plan::Pool;

pub(super) static LLM_D_SIM: TargetFile = TargetFile::new("llm-d-sim", "llm-d-sim.yaml", &LLM_D_SIM_WORDS, |file| {
    let settings = file.settings.iter().map(|setting| (setting.key.clone(), setting.value.clone()));
    let document: Map<String, Value> = [("model".to_owned(), json!(file.model))].into_iter().chain(settings).collect();
    file.yaml("llm-d-inference-sim --config FILE", &Value::Object(document))
});

static LLM_D_SIM_WORDS: Dialect = Dialect {
    name: "llm-d-inference-sim",
    versions: &["0.10.2"],
    keys: &[
        plan("max-model-len", "max_seq_len"),
        plan("max-num-seqs", "max_batch_size"),
        own("enable-kvcache", |_| Some((json!(true), "so that blocks are counted".into()))),
        own("kv-cache-size", blocks),
        plan("block-size", "engine.block_size"),
        flag("data-parallel-size", "parallel.dp", |input| input.data_parallel().filter(|_| input.parallel().dp <= 8)),
        plan("tensor-parallel-size", "parallel.tp"),
    ],
    gaps: &[
        |input| (input.parallel().dp > 8).then(|| "more than 8 replicas: the simulator runs at most as many".into()),
        |input| (input.parallel().tp > 1).then(|| "tensor-parallel-size: the simulator takes it and ignores it".into()),
        sizes,
        states,
        windows,
    ],
    refuses: |input| {
        const SIZES: [u64; 5] = [8, 16, 32, 64, 128];
        let size = tokens_per_block(input);
        no_blocks(input).or_else(|| {
            size.filter(|size| !SIZES.contains(size)).map(|size| {
                format!("its blocks have 8, 16, 32, 64 or 128 tokens, the plan's {size}; plan with one of these")
            })
        })
    },
    chooses_dtypes: false,
};

pub(super) static VIDUR: TargetFile = TargetFile::new("vidur", "vidur.sh", &VIDUR_WORDS, |file| {
    let lines = file.argument_lines();
    let model = quoted(file.model);
    let body = format!(
        "args=(\n{lines})\nexec python3 -m vidur.main --replica_config_model_name {model} \"${{args[@]}}\" \"$@\"\n"
    );
    format!(
        "#!/usr/bin/env bash\n{}",
        file.commented("bash FILE FLAGS, the flags those of requests and devices", &body)
    )
});

static VIDUR_WORDS: Dialect = Dialect {
    name: "Vidur",
    versions: &["0.0.1"],
    keys: &[
        plan("cluster_config_num_replicas", "parallel.dp"),
        plan("replica_config_tensor_parallel_size", "parallel.tp"),
        plan("replica_config_num_pipeline_stages", "parallel.pp"),
        own("replica_scheduler_config_type", |_| {
            Some((json!("vllm"), "the scheduler that the next keys are of".into()))
        }),
        plan("vllm_scheduler_config_block_size", "engine.block_size"),
        own("vllm_scheduler_config_num_blocks", blocks),
        plan("vllm_scheduler_config_batch_size_cap", "max_batch_size"),
        plan("vllm_scheduler_config_max_tokens_in_batch", "max_num_tokens"),
    ],
    gaps: &[
        |_| Some("the model: Vidur runs those that its `model_config.py` describes, each in 16 bits".into()),
        |_| {
            Some(
                "batches beyond its own memory planner's: it caps them by the model's keys and values in 16 bits"
                    .into(),
            )
        },
        sizes,
        states,
        windows,
    ],
    refuses: no_blocks,
    chooses_dtypes: false,
};

fn no_blocks(input: &Input<'_>) -> Option<String> {
    let sized = tokens_per_block(input).is_some() && blocks(input).is_some();
    (!sized).then(|| "it counts blocks of one size, and the plan has none or several".into())
}

fn tokens_per_block(input: &Input<'_>) -> Option<u64> {
    input.tokens_per_block()?.0.as_u64()
}

/// The pool that runs out first: of full attention, where there is any.
pub(super) fn blocks(input: &Input<'_>) -> Sourced {
    let usable = |pool: &Pool| pool.units - pool.reserved;
    let full = input.paged().filter(|pool| pool.window.is_none()).min_by_key(|pool| usable(pool));
    let least = full.or_else(|| input.paged().min_by_key(|pool| usable(pool)))?;
    Some((json!(usable(least)), format!("blocks of {} beside its padding", least.id)))
}

fn sizes(input: &Input<'_>) -> Option<String> {
    Some(format!("{} bytes per token: a block has no bytes there", input.plan.totals.kv_bytes_per_token))
}

fn states(input: &Input<'_>) -> Option<String> {
    let bytes = input.plan.totals.state_bytes_per_sequence;
    input
        .has_states()
        .then(|| format!("{bytes} bytes of states for each sequence: blocks are all that is counted there"))
}

fn windows(input: &Input<'_>) -> Option<String> {
    let windows = || input.paged().filter(|pool| pool.window.is_some()).map(|pool| pool.id.as_str());
    let full = input.paged().any(|pool| pool.window.is_none());
    (full && windows().next().is_some())
        .then(|| format!("{}: every sequence is counted by the blocks of full attention", listed(windows())))
}
