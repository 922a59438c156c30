//! How full the pools are.

use std::fmt;
use std::sync::PoisonError;

use serde::{Deserialize, Serialize};

use super::cache::CacheBook;
use super::exposition::Exposition;
use super::layout::{Indexing, PlannedUnits};
use super::sequence::Residency;
use super::{SlotAllocator, SlotRole};
use crate::prefix::Metrics;

/// A snapshot of every pool.
///
/// What was planned for a resource stands beside what is used of it, by the id of its pool:
///
/// ```
/// # use cacheplan_managers::book::CacheBook;
/// # use cacheplan_planner::CachePlan;
/// # fn shown(plan: &CachePlan, book: &CacheBook) {
/// let stats = book.stats();
/// for resource in &plan.resources {
///     if let Some(pool) = stats.planned_pool(&resource.pool) {
///         println!("{}: {} of {} units of {} bytes", resource.name, pool.used, pool.units, pool.unit_bytes);
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// What can be held and is: one per paged pool, then one per slot role, over all pools that have slots.
    pub pools: Vec<PoolStats>,
    /// Every pool of the plan, in its order, beside what is used of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planned: Vec<PlannedStats>,
    /// Sequences by where their caches are.
    pub sequences: SequenceStats,
    /// The host tier; absent if the plan has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostStats>,
    /// What prompts took over of one another; absent where no [`PrefixReuse`](crate::prefix::PrefixReuse) is over these books.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefixes: Option<Metrics>,
}

/// One pool, or one role of the slot domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolStats {
    /// The pool's id, `slots.live` or `slots.checkpoint`.
    pub id: String,
    /// Units that can be held at once; padding is not counted.
    pub capacity: u64,
    /// Units that somebody holds.
    pub used: u64,
    /// Units that nobody holds.
    pub free: u64,
    /// Of the used, those that only prefix caches hold.
    pub cached: u64,
    /// The most units that were held at once.
    pub high_water: u64,
    /// The share of the room in the sequences' units that no token fills: reserved for the rest of a prompt, or the
    /// tail of a last block. 0 for slots.
    pub fragmentation: f64,
    /// Requests that were refused because this pool was short.
    pub refused: u64,
}

/// A pool of the plan beside what is used of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStats {
    /// Its id, by which the plan's resources name it.
    pub id: String,
    /// Its units, as planned.
    pub units: u64,
    /// Those of them that pad, and that nobody can hold.
    pub reserved: u64,
    /// Those that somebody holds: a slot of it is a running sequence's or a checkpoint.
    pub used: u64,
    /// Bytes of one unit.
    pub unit_bytes: u64,
}

/// The host tier, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStats {
    /// What the plan gives it.
    pub capacity_bytes: u64,
    /// Offloaded sequences, and what is set aside for a prefix cache.
    pub used_bytes: u64,
    /// The most that was used at once.
    pub high_water_bytes: u64,
    /// Sequences that were refused because it was short.
    pub refused: u64,
}

/// Sequences by where their caches are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceStats {
    /// In the pools.
    pub resident: u64,
    /// Nowhere.
    pub preempted: u64,
    /// In host memory.
    pub offloaded: u64,
}

impl CacheBook {
    /// A snapshot of every pool. Costs time in proportion to the blocks that sequences hold.
    pub fn stats(&self) -> Stats {
        let mut pools: Vec<PoolStats> = (0..self.blocks.len()).map(|paged| self.paged_stats(paged)).collect();
        if self.layout.has_slots() {
            pools.push(slot_stats(&self.slots, SlotRole::Live, self.refused_slots));
            pools.push(slot_stats(self.checkpoints(), SlotRole::Checkpoint, self.refused_checkpoints));
        }
        let mut sequences = SequenceStats::default();
        for (_, sequence) in self.sequences.iter() {
            *match sequence.residency {
                Residency::Resident => &mut sequences.resident,
                Residency::Preempted => &mut sequences.preempted,
                Residency::Offloaded => &mut sequences.offloaded,
            } += 1;
        }
        let prefixes = self.prefixes.upgrade().map(|metrics| *metrics.lock().unwrap_or_else(PoisonError::into_inner));
        Stats { pools, planned: self.planned_stats(), sequences, host: self.host_stats(), prefixes }
    }

    fn planned_stats(&self) -> Vec<PlannedStats> {
        let used = |indexing: &Indexing, units: u64| -> u64 {
            match indexing {
                Indexing::Blocks(paged) => self.blocks[*paged].used().into(),
                Indexing::Slots => [SlotRole::Live, SlotRole::Checkpoint]
                    .into_iter()
                    .map(|role| u64::from(self.slots.used(role)))
                    .sum(),
                Indexing::DraftRows => self.layout.draft_rows.len().saturating_sub(self.free_rows.len()) as u64,
                Indexing::Checkpoints => self.checkpoints().used(SlotRole::Checkpoint).into(),
                Indexing::Fixed => units,
            }
        };
        let pools = self.layout.planned.iter().zip(&self.layout.indexing);
        pools
            .map(|(PlannedUnits { id, units, reserved, unit_bytes }, indexing)| PlannedStats {
                id: id.clone(),
                units: *units,
                reserved: *reserved,
                used: used(indexing, *units),
                unit_bytes: *unit_bytes,
            })
            .collect()
    }

    /// Slots that sequences hold, and checkpoints that prefixes do.
    pub fn slots_in_use(&self) -> u64 {
        self.used_units().skip(self.blocks.len()).sum()
    }

    /// Units in use of each pool, in the order of [`Stats::pools`].
    pub fn used_units(&self) -> impl Iterator<Item = u64> + '_ {
        let slots = self
            .layout
            .has_slots()
            .then(|| [self.slots.used(SlotRole::Live), self.checkpoints().used(SlotRole::Checkpoint)].map(u64::from));
        self.blocks.iter().map(|blocks| u64::from(blocks.used())).chain(slots.into_iter().flatten())
    }

    /// Counts the bytes of the host tier; `None` if the plan has none.
    pub fn host_stats(&self) -> Option<HostStats> {
        Some(HostStats {
            capacity_bytes: self.layout.host_bytes?,
            used_bytes: self.host.total(),
            high_water_bytes: self.host.high_water,
            refused: self.host.refused,
        })
    }

    fn paged_stats(&self, paged: usize) -> PoolStats {
        let (spec, blocks) = (&self.layout.paged[paged], &self.blocks[paged]);
        let mut held = vec![false; spec.blocks as usize];
        let (mut room, mut filled) = (0u64, 0u64);
        for (_, sequence) in self.sequences.iter() {
            let Some(table) = sequence.tables.get(paged) else { continue };
            let entries = &table.entries()[table.released()..];
            for &block in entries {
                held[block as usize] = true;
            }
            let per_block = u64::from(spec.entries_per_block);
            room += entries.len() as u64 * per_block;
            let computed = u64::from(spec.entries(sequence.tokens)).saturating_sub(table.released() as u64 * per_block);
            filled += computed.min(entries.len() as u64 * per_block);
        }
        let in_sequences = held.into_iter().filter(|&held| held).count() as u64;
        PoolStats {
            id: spec.id.clone(),
            capacity: u64::from(blocks.capacity()),
            used: u64::from(blocks.used()),
            free: u64::from(blocks.available()),
            cached: u64::from(blocks.used()) - in_sequences,
            high_water: u64::from(blocks.high_water()),
            fragmentation: if room == 0 { 0.0 } else { (room - filled) as f64 / room as f64 },
            refused: self.refused[paged],
        }
    }
}

fn slot_stats(slots: &SlotAllocator, role: SlotRole, refused: u64) -> PoolStats {
    let used = u64::from(slots.used(role));
    PoolStats {
        id: format!("slots.{role}"),
        capacity: u64::from(slots.quota(role)),
        used,
        free: u64::from(slots.available(role)),
        cached: if role == SlotRole::Checkpoint { used } else { 0 },
        high_water: u64::from(slots.high_water(role)),
        fragmentation: 0.0,
        refused,
    }
}

impl Stats {
    /// The pool of the plan that has this id.
    #[must_use]
    pub fn planned_pool(&self, id: &str) -> Option<&PlannedStats> {
        self.planned.iter().find(|pool| pool.id == id)
    }

    /// The snapshot in the Prometheus text format.
    pub fn prometheus(&self) -> String {
        let mut out = Exposition::default();
        self.expose(&mut out);
        out.into_text()
    }

    /// The snapshot's families, for a text that has others too.
    pub fn expose(&self, out: &mut Exposition) {
        for (name, kind, help, value) in POOL_METRICS {
            out.family(&format!("pool_{name}"), kind, help);
            for pool in &self.pools {
                out.sample(&[("pool", &pool.id)], value(pool));
            }
        }
        for (name, help, value) in PLANNED_METRICS {
            out.family(&format!("planned_{name}"), "gauge", help);
            for pool in &self.planned {
                out.sample(&[("pool", &pool.id)], value(pool) as f64);
            }
        }
        out.family("sequences", "gauge", "Sequences by where their caches are.");
        let SequenceStats { resident, preempted, offloaded } = self.sequences;
        for (state, count) in [("resident", resident), ("preempted", preempted), ("offloaded", offloaded)] {
            out.sample(&[("state", state)], count as f64);
        }
        for (name, kind, help, value) in HOST_METRICS {
            let Some(host) = &self.host else { break };
            out.family(&format!("host_{name}"), kind, help).sample(&[], value(host) as f64);
        }
        if let Some(prefixes) = &self.prefixes {
            prefixes.expose(out);
        }
    }
}

impl fmt::Display for Stats {
    /// A table of at most 100 columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["CAPACITY", "USED", "FREE", "CACHED", "HIGHEST", "REFUSED"];
        write!(f, "{:<30}", "POOL")?;
        heads.iter().try_for_each(|head| write!(f, "{head:>10}"))?;
        writeln!(f, "{:>7}", "FRAGM.")?;
        for pool in &self.pools {
            // A long name is cut, never a number.
            write!(f, "{:<30.30}", pool.id)?;
            let counts = [pool.capacity, pool.used, pool.free, pool.cached, pool.high_water, pool.refused];
            counts.iter().try_for_each(|count| write!(f, "{count:>10}"))?;
            writeln!(f, "{:>6.1}%", 100.0 * pool.fragmentation)?;
        }
        if !self.planned.is_empty() {
            writeln!(f, "\n{:<30}{:>10}{:>10}{:>10}{:>16}", "PLANNED", "UNITS", "PADDING", "USED", "BYTES OF ONE")?;
        }
        for PlannedStats { id, units, reserved, used, unit_bytes } in &self.planned {
            writeln!(f, "{id:<30.30}{units:>10}{reserved:>10}{used:>10}{unit_bytes:>16}")?;
        }
        let SequenceStats { resident, preempted, offloaded } = self.sequences;
        writeln!(f, "\nsequences: {resident} resident, {preempted} preempted, {offloaded} offloaded")?;
        if let Some(Metrics { hit_tokens, prompt_tokens, recomputed_for_state, .. }) = self.prefixes {
            let short = match recomputed_for_state {
                0 => String::new(),
                tokens => format!("; {tokens} more but for want of a state"),
            };
            writeln!(f, "prefixes: {hit_tokens} of {prompt_tokens} prompt tokens were cached{short}")?;
        }
        let Some(HostStats { capacity_bytes, used_bytes, high_water_bytes, refused }) = self.host else {
            return Ok(());
        };
        writeln!(
            f,
            "host tier: {used_bytes} of {capacity_bytes} bytes used, at most {high_water_bytes}; {refused} refused"
        )
    }
}

type PoolMetric = (&'static str, &'static str, &'static str, fn(&PoolStats) -> f64);

const POOL_METRICS: [PoolMetric; 7] = [
    ("capacity_units", "gauge", "Units that can be held at once.", |pool| pool.capacity as f64),
    ("used_units", "gauge", "Units that somebody holds.", |pool| pool.used as f64),
    ("free_units", "gauge", "Units that nobody holds.", |pool| pool.free as f64),
    ("cached_units", "gauge", "Used units that only prefix caches hold.", |pool| pool.cached as f64),
    ("high_water_units", "gauge", "The most units held at once.", |pool| pool.high_water as f64),
    ("fragmentation_ratio", "gauge", "Share of the sequences' room that no token fills.", |pool| pool.fragmentation),
    ("refused_total", "counter", "Requests refused because the pool was short.", |pool| pool.refused as f64),
];

type PlannedMetric = (&'static str, &'static str, fn(&PlannedStats) -> u64);

const PLANNED_METRICS: [PlannedMetric; 3] = [
    ("units", "Units of a pool of the plan, padding included.", |pool| pool.units),
    ("used_units", "Those of them that somebody holds.", |pool| pool.used),
    ("unit_bytes", "Bytes of one unit.", |pool| pool.unit_bytes),
];

type HostMetric = (&'static str, &'static str, &'static str, fn(&HostStats) -> u64);

const HOST_METRICS: [HostMetric; 4] = [
    ("capacity_bytes", "gauge", "Bytes that the plan gives the host tier.", |host| host.capacity_bytes),
    ("used_bytes", "gauge", "Bytes of the host tier in use.", |host| host.used_bytes),
    ("high_water_bytes", "gauge", "The most bytes in use at once.", |host| host.high_water_bytes),
    ("refused_total", "counter", "Sequences refused because the host tier was short.", |host| host.refused),
];
