//! What SGLang refuses behind its parser, by the words of 0.5.23 (`arg_groups/` and `server_args.py`).

use cacheplan_planner::engines::Version;

use super::super::rules::{Case, Rule, lists, since};

const READ: Version = Version(0, 5, 23);
const STRATEGY: &str = "--mamba-radix-cache-strategy";
const DRAFTS: &str = "--speculative-algorithm";
const NO_OVERLAP: &str = "--disable-overlap-schedule";

/// `SpeculativeAlgorithm`, with the other name of one.
const ALGORITHMS: &str = "DFLASH UNO DSPARK EAGLE EAGLE3 FROZEN_KV_MTP STANDALONE NGRAM NONE NEXTN";

pub(super) const RULES: &[Rule] = &[
    since(READ, &["--enable-hierarchical-cache", "--disable-radix-cache"], |case| {
        let both = case.is_on("--enable-hierarchical-cache") && case.is_on("--disable-radix-cache");
        both.then(|| {
            "The arguments enable-hierarchical-cache and disable-radix-cache are mutually exclusive and cannot be used at the same time. Please use only one of them."
                .into()
        })
    }),
    since(READ, &["--nnodes"], |case| {
        let ranks = case.size("--tp-size").saturating_mul(case.size("--pp-size"));
        let nodes = case.size("--nnodes").max(1);
        (!ranks.is_multiple_of(nodes)).then(|| "tp_size must be divisible by number of nodes".into())
    }),
    since(READ, &["--nnodes", "--dp-size"], |case| {
        let whole = case.size("--dp-size") > 1 && !case.is_on("--enable-dp-attention");
        (whole && case.size("--nnodes") > 1).then(|| {
            "multi-node data-parallel replicas are not supported; use attention DP (--attn-dp-size) across nodes".into()
        })
    }),
    since(READ, &[DRAFTS, "--pp-size"], |case| {
        let drafts = case.word(DRAFTS).map(str::to_uppercase)?;
        let others = !matches!(&*drafts, "EAGLE" | "NEXTN" | "DSPARK") && case.size("--pp-size") > 1;
        others
            .then(|| "Pipeline parallelism currently only supports EAGLE (non-multi-layer) speculative decoding".into())
    }),
    since(READ, &["--disable-cuda-graph-padding", "--enable-torch-compile"], |case| {
        let both = case.is_on("--disable-cuda-graph-padding") && case.is_on("--enable-torch-compile");
        both.then(|| "--disable-cuda-graph-padding is incompatible with --enable-torch-compile.".into())
    }),
    since(READ, &["--base-gpu-id"], |case| {
        case.whole("--base-gpu-id").filter(|id| *id < 0).map(|_| "base_gpu_id must be non-negative".into())
    }),
    since(READ, &[STRATEGY, "--page-size"], |case| {
        let pages = case.size("--page-size") > 1;
        (keeps_without_buffers(case) && pages).then(|| "no_buffer only supports page_size=1.".into())
    }),
    // Stages do not overlap anyway.
    since(READ, &[STRATEGY], |case| {
        let overlaps = !case.is_on(NO_OVERLAP) && case.size("--pp-size") == 1;
        (keeps_without_buffers(case) && overlaps)
            .then(|| "no_buffer do not support overlap schedule. Try to set disable_overlap_schedule=True.".into())
    }),
    since(READ, &[NO_OVERLAP, STRATEGY], |case| {
        let lazy = case.word(STRATEGY) == Some("extra_buffer_lazy") && !case.is_on("--disable-radix-cache");
        (lazy && case.has_states() && case.is_on(NO_OVERLAP))
            .then(|| "Lazy extra buffer requires overlap schedule (--disable-overlap-schedule is incompatible)".into())
    }),
    since(READ, &[STRATEGY], |case| {
        let buffers = case.word(STRATEGY).filter(|word| matches!(*word, "extra_buffer" | "extra_buffer_lazy"));
        let buffers = buffers.filter(|_| !case.has_states() && !case.is_on("--disable-radix-cache"))?;
        Some(format!("--mamba-radix-cache-strategy {buffers} needs mamba state, got {}.", case.model_type()))
    }),
    since(READ, &[DRAFTS], |case| {
        let word = case.word(DRAFTS).map(str::to_uppercase)?;
        (!lists(ALGORITHMS, &word)).then(|| format!("Unknown speculative algorithm name: {word}"))
    }),
];

fn keeps_without_buffers(case: &Case<'_>) -> bool {
    case.word(STRATEGY) == Some("no_buffer") && case.has_states() && !case.is_on("--disable-radix-cache")
}
