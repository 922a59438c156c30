//! What checkpoints call the modules whose weights the graph has, and which of them a list names.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::names::Pattern;
use crate::graph::Name;

/// Modules that a checkpoint lists.
#[derive(Default)]
pub(super) struct Modules {
    /// Names from `layers` on, and those below them.
    names: BTreeSet<String>,
    /// Names that may stand anywhere in a name.
    runs: Vec<String>,
    /// Patterns that say something of the layer, and those that do not.
    layered: Vec<Pattern>,
    patterns: Vec<Pattern>,
    /// What is known of weights of which names and patterns without a layer tell.
    known: RefCell<BTreeMap<String, Share>>,
    steps: Cell<u64>,
}

/// How much of a weight a list names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    None,
    Part,
    All,
}

/// What matching may take.
const MAX_STEPS: u64 = 4_000_000;

/// Modules of one weight: folders, and the modules in them by the spellings of different models.
type Spellings = (&'static [&'static str], &'static [&'static [&'static str]]);

const MIXER: &[&str] = &["self_attn", "linear_attn", "mixer", "mamba", "attention", "attn", "conv", "self_attention"];
const QUERY: &[&[&str]] =
    &[&["q_proj", "k_proj", "v_proj"], &["qkv_proj"], &["query_key_value"], &["Wqkv"], &["c_attn"]];
const OUT: &[&[&str]] = &[&["o_proj"], &["out_proj"], &["dense"], &["wo"]];
const MLP: &[&[&str]] = &[
    &["gate_proj", "up_proj", "down_proj"],
    &["gate_up_proj", "down_proj"],
    &["w1", "w2", "w3"],
    &["up_proj", "down_proj"],
];

/// The modules of a weight of the graph, below their layer; none for what is never quantised: norms, routers, embeddings.
fn spellings(part: &str) -> Option<Spellings> {
    Some(match part {
        "lm_head.weight" => (&[], &[&["lm_head"]]),
        "attention.qkv.weight" | "attention.qk.weight" => (MIXER, QUERY),
        "attention.out.weight" | "mla.out.weight" | "linear_attn.out.weight" | "mamba.out_proj.weight" => (MIXER, OUT),
        "conv.out_proj.weight" => (MIXER, OUT),
        "mla.query_down.weight" => (MIXER, &[&["q_a_proj"], &["fused_qkv_a_proj"]]),
        "mla.query_up.weight" => (MIXER, &[&["q_b_proj"], &["q_proj"]]),
        "mla.kv_down.weight" => (MIXER, &[&["kv_a_proj_with_mqa"], &["fused_qkv_a_proj"]]),
        "mla.kv_up.weight" => (MIXER, &[&["kv_b_proj"]]),
        "linear_attn.qkv.weight" => (MIXER, &[&["in_proj_qkv"], &["in_proj_qkvz"], &["q_proj", "k_proj", "v_proj"]]),
        "mixer.divided" => (MIXER, &[&["in_proj_z"], &["in_proj_qkvz"], &["g_proj"], &["q_proj"], &["qkv_proj"]]),
        "mamba.in_proj.weight" | "conv.in_proj.weight" => (MIXER, &[&["in_proj"]]),
        "mamba.x_proj.weight" => (MIXER, &[&["x_proj"]]),
        "mamba.dt_proj.weight" => (MIXER, &[&["dt_proj"]]),
        "mlp.weight" => (&["mlp", "feed_forward", "mixer", "ffn"], MLP),
        "mlp.shared.weight" => (
            &[
                "mlp.shared_experts",
                "mlp.shared_expert",
                "mixer.shared_experts",
                "block_sparse_moe.shared_experts",
                "shared_mlp",
            ],
            MLP,
        ),
        "mlp.experts.weight" => (
            &[
                "mlp.experts.0",
                "mlp.experts",
                "block_sparse_moe.experts.0",
                "mixer.experts.0",
                "feed_forward.experts.0",
            ],
            MLP,
        ),
        "mlp.latent.weight" => (&["mixer", "mlp"], &[&["fc1_latent_proj", "fc2_latent_proj"]]),
        _ => return None,
    })
}

/// Whether a checkpoint may store the weight otherwise than in its model's dtype.
pub(super) fn is_matrix(name: &Name) -> bool {
    spellings(&name.part).is_some()
}

impl Modules {
    /// What a list names; an error is the entry that is not read.
    pub(super) fn new<'a>(listed: impl IntoIterator<Item = &'a str>) -> Result<Self, &'a str> {
        let mut modules = Self { steps: Cell::new(MAX_STEPS), ..Self::default() };
        for text in listed {
            modules.add(text).ok_or(text)?;
        }
        Ok(modules)
    }

    fn add(&mut self, text: &str) -> Option<()> {
        // Wrappers put words of their own before the layers.
        let from_layers = text.find("layers").map(|at| &text[at..]);
        let bare = |text: &str| !text.contains(['*', '?', '[']);
        if let Some(expression) = text.strip_prefix("re:") {
            match expression.find("layers").map(|at| expression.split_at(at)) {
                Some((before, from)) if !before.contains(['(', '[', '|']) => self.layered.push(Pattern::regex(from)?),
                Some(_) => return None,
                None => self.patterns.push(Pattern::regex(expression)?),
            }
            return Some(());
        }
        let trimmed = text.trim_end_matches(['*', '.']);
        match from_layers {
            Some(from) if bare(trimmed) => drop(self.names.insert(from.trim_end_matches(['*', '.']).to_owned())),
            Some(from) => self.layered.push(Pattern::glob(from)?),
            None if bare(text) => self.runs.push(format!(".{text}.")),
            None => self.patterns.push(Pattern::glob(text)?),
        }
        Some(())
    }

    /// How much of a weight is listed; an error where telling takes too long.
    pub(super) fn share(&self, name: &Name) -> Result<Share, String> {
        let Some((folders, spelled)) = spellings(&name.part) else { return Ok(Share::None) };
        let known = self.known.borrow().get(&*name.part).copied();
        let anywhere = known.unwrap_or_else(|| share(folders, spelled, &|module| self.is_listed(module)));
        self.known.borrow_mut().insert(name.part.to_string(), anywhere);
        let here = match name.layer {
            Some(layer) if anywhere != Share::All && !(self.names.is_empty() && self.layered.is_empty()) => {
                share(folders, spelled, &|module| {
                    self.is_listed(module) || self.is_listed_in(&format!("layers.{layer}.{module}"))
                })
            }
            _ => anywhere,
        };
        match self.steps.get() {
            0 => Err("its lists of modules take too long to match; the tensors' headers tell the layers".to_owned()),
            _ => Ok(here),
        }
    }

    fn is_listed(&self, module: &str) -> bool {
        let run = format!(".{module}.");
        let full = if module == "lm_head" { module.to_owned() } else { format!("model.layers.0.{module}") };
        self.runs.iter().any(|listed| run.contains(listed))
            || self.patterns.iter().any(|pattern| pattern.matches(&full, &self.steps))
    }

    fn is_listed_in(&self, name: &str) -> bool {
        let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
        ends.into_iter().any(|end| self.names.contains(&name[..end]))
            || self.layered.iter().any(|pattern| pattern.matches(name, &self.steps))
    }
}

fn share(folders: &[&str], spelled: &[&[&str]], is_listed: &dyn Fn(&str) -> bool) -> Share {
    let mut found = Share::None;
    for folder in folders.iter().copied().chain(folders.is_empty().then_some("")) {
        for modules in spelled {
            let full = |module: &&&str| match folder {
                "" => is_listed(module),
                folder => is_listed(&format!("{folder}.{module}")),
            };
            match modules.iter().filter(full).count() {
                0 => {}
                listed if listed == modules.len() => return Share::All,
                _ => found = Share::Part,
            }
        }
    }
    found
}
