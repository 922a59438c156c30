//! What a plan says in a sentence or a few words.

use cacheplan_handlers::{Growth, Kind};

use super::columns::WIDTH;
use crate::error::Suggestion;
use crate::plan::{CachePlan, Pool, Unit};
use crate::size::{ByteSize, sequences};

impl CachePlan {
    /// What a sequence of the longest length takes: so much for each token, and so much whatever its length.
    pub(crate) fn sequence_in_words(&self) -> String {
        let longest = self.limits.max_seq_len;
        // Ranks may divide the tokens of a sequence, whose states are whole on each.
        let ranks = self.parallel.context_ranks().max(1);
        let held = longest.div_ceil(ranks);
        let (mut per_token, mut growing, mut windows, mut states) = (0_u64, 0_u64, 0_u64, 0_u64);
        for resource in &self.resources {
            match resource.handler.growth().within(longest) {
                Growth::Paged { window: Some(window), .. } => {
                    windows = windows.saturating_add(resource.bytes_per_token.saturating_mul(held.min(window.into())));
                }
                Growth::Paged { stride, window: None } => {
                    let entries = held.div_ceil(u64::from(stride).max(1));
                    growing = growing.saturating_add(entries.saturating_mul(resource.handler.unit_bytes()));
                    per_token = per_token.saturating_add(resource.bytes_per_token);
                }
                _ if !resource.owner.is_managed() => states = states.saturating_add(resource.bytes_per_sequence),
                _ => {}
            }
        }
        let slots = self.pools.iter().filter(|pool| pool.owner.is_managed() && pool.unit == Unit::Slot);
        let each = |pool: &Pool| {
            let live = u128::from(pool.units.saturating_sub(pool.reserved)) * u128::from(pool.unit_bytes);
            u64::try_from(live / u128::from(self.slots.live.max(1))).unwrap_or(u64::MAX)
        };
        states = slots.map(each).fold(states, u64::saturating_add);
        let terms = [(per_token.div_ceil(ranks), "per token"), (windows, "in full windows"), (states, "of states")];
        let terms: Vec<String> = terms
            .iter()
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, what)| format!("{} {what}", ByteSize(*bytes)))
            .collect();
        let whole = ByteSize(growing.saturating_add(windows).saturating_add(states));
        let rank = if self.deployment.is_some() { " on this rank" } else { "" };
        format!("{whole} at {longest} tokens{rank}: {}", terms.join(" + "))
    }

    /// Behind a number of tokens: where they lie.
    pub(crate) fn in_pages(&self) -> &'static str {
        if self.parallel.context_ranks() > 1 { "on each rank" } else { "tokens in pages" }
    }

    /// What a pool holds, of how many layers on all `stages`, as people call it.
    pub(crate) fn pool_in_words(&self, pool: &Pool, stages: &[Self]) -> String {
        let kind = self.resources.iter().find(|resource| resource.pool == pool.id).map(|first| first.handler.kind());
        let what = match kind {
            _ if pool.checkpoints_of.is_some() => "checkpoints",
            Some(Kind::KvPaged) if pool.window.is_some() => "windows' KV",
            Some(Kind::KvPaged) => "KV",
            Some(Kind::MlaPaged | Kind::MlaRope) => "latents",
            Some(Kind::IndexKey) => "index keys",
            Some(Kind::Ssm | Kind::State) => "states",
            Some(Kind::CausalConv) => "conv states",
            _ => return pool.id.clone(),
        };
        let alike = stages.iter().flat_map(|stage| &stage.pools).filter(|other| other.id == pool.id);
        match alike.map(|pool| pool.layers.len()).sum::<usize>() {
            0 => what.to_owned(),
            1 => format!("{what}, 1 layer"),
            layers => format!("{what}, {layers} layers"),
        }
    }
}

impl Suggestion {
    /// What each of several changes by itself would admit, below a plan's table and as wide.
    pub fn table(changes: &[Self]) -> String {
        const INDENT: usize = 10;
        let lines = changes.iter().enumerate().map(|(at, knob)| {
            let label = if at == 0 { "KNOBS" } else { "" };
            let said = format!("{} would admit {}", knob.change, sequences(knob.sequences));
            // A change stays whole, so that it can be copied.
            let line = if INDENT + said.chars().count() > WIDTH {
                said.replacen(" would", &format!("\n{:INDENT$}  would", ""), 1)
            } else {
                said
            };
            format!("{label:INDENT$}{line}\n")
        });
        lines.collect()
    }
}
