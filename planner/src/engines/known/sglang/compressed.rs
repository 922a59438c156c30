//! DeepSeek-V4 and V4.1 in SGLang: a pool of all layers' windows, one of entries for each ratio, and states of entries in the making.
//!
//! Rules: `DSV4PoolConfigurator` of 0.5.23, which counts bytes of a token of each kind in floating point.

use std::collections::BTreeMap;

use cacheplan_handlers::{DType, Growth, Kind, Shape};

use super::{EVICTION_INTERVAL, ratio, steps_under_way};
use crate::engines::caches::{HOPPER, index_bytes};
use crate::engines::prediction::EnginePrediction;
use crate::engines::situation::Situation;
use crate::engines::version::Version;
use crate::error::{EngineRefusal, PlanError};
use crate::solver::demand::Demand;
use crate::solver::solve::last;

/// Read in 0.5.23 alone; before, pools were others.
const READ: Version = Version(0, 5, 23);
const PAGE: u64 = 256;
const RUNNING: u64 = 256;
/// Tokens of windows to one of entries, of V4 alone: V4.1's pool of windows is what the running requests need.
const WINDOW_RATIO_MILLIONTHS: u128 = 100_000;
/// Prefixes whose windows are kept, for each running request.
const TAILS: u64 = 4;
/// Pages of an indexer's keys.
const INDEX_PAGE: u64 = 64;
const STATE_BYTES: u64 = 4;

/// A model whose rules were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V41,
}

impl Family {
    pub(super) fn of(model_type: &str) -> Option<Self> {
        match model_type {
            "deepseek_v4" => Some(Self::V4),
            "deepseek_v41" | "deepseek_v41_text" => Some(Self::V41),
            _ => None,
        }
    }

    pub(super) fn refuses(self, situation: &Situation<'_>) -> Option<EngineRefusal> {
        let (engine, version) = (super::RULES.name, situation.version);
        if version < READ {
            let cache = situation.caches.attention.first().map_or(String::new(), |cache| cache.name.to_owned());
            return Some(EngineRefusal::Unread { engine, cache });
        }
        let said = match situation.budget.dtypes.kv {
            Some(dtype) if !matches!(dtype, DType::F8E4m3 | DType::Bf16) => {
                format!("{dtype} is not supported for DeepseekV4ForCausalLM")
            }
            _ if self == Self::V41 && situation.stages.len() > 1 => {
                "DeepSeek-V4.1 does not support pipeline parallelism yet; disable it to serve this model.".to_owned()
            }
            _ => return None,
        };
        Some(EngineRefusal::Kernel { engine, version, said })
    }
}

/// How records lie in a page: bytes of one, and what pages are multiples of.
#[derive(Clone, Copy)]
struct Record {
    bytes: u64,
    multiple: u64,
}

const V4: Record = Record { bytes: 584, multiple: 576 };
const V41: Record = Record { bytes: 528, multiple: 512 };
const V41_FP4: Record = Record { bytes: 288, multiple: 256 };

impl Record {
    /// Bytes of a token in pages of so many.
    fn per_token(self, page: u64) -> f64 {
        (page * self.bytes).next_multiple_of(self.multiple) as f64 / page as f64
    }
}

/// What one rank holds.
struct Held {
    layers: u64,
    /// Layers that own entries, by how many tokens one stands for.
    owners: BTreeMap<u64, u64>,
    width: u64,
    index_width: u64,
    window: u32,
}

impl Held {
    fn of(situation: &Situation<'_>) -> Self {
        let mut held = Self { layers: 0, owners: BTreeMap::new(), width: 512, index_width: 0, window: 0 };
        let mut before = "";
        for cache in situation.caches.attention.iter().filter(|cache| !cache.draft) {
            // Readers of another layer's entries have none.
            if cache.name == before {
                continue;
            }
            before = cache.name;
            let width = match cache.handler.known_shape() {
                Some(Shape::Vector { head_dim } | Shape::Kv { head_dim, .. }) => head_dim,
                _ => 0,
            };
            match cache.handler.growth() {
                Growth::Paged { window: Some(window), .. } => {
                    held.layers += 1;
                    (held.window, held.width) = (window, width);
                }
                _ if *cache.handler.kind() == Kind::IndexKey => held.index_width = width,
                _ => *held.owners.entry(cache.stride).or_default() += 1,
            }
        }
        held
    }

    fn owners(&self, ratio: u64) -> u64 {
        self.owners.get(&ratio).copied().unwrap_or(0)
    }
}

/// Rows that a request keeps of tokens whose entry is in the making.
fn ring(ratio: u64, drafted: u64) -> u64 {
    match (ratio, drafted) {
        (2, 0) => 2,
        (2, _) => 1 << (u64::BITS - (drafted + 1).leading_zeros()),
        (4, 0) => 8,
        (4, _) => 16,
        (ratio, 0) => ratio,
        (ratio, _) => 2 * ratio,
    }
}

pub(super) fn predict(family: Family, situation: &Situation<'_>) -> Result<EnginePrediction, PlanError> {
    let held = Held::of(situation);
    let page = situation.options.block_size.unwrap_or(PAGE);
    if !page.is_multiple_of(128) {
        let (engine, version) = (super::RULES.name, situation.version);
        let said = "page_size must be multiple of 128 for compressed attention".to_owned();
        return Err(EngineRefusal::Kernel { engine, version, said }.into());
    }
    let (drafted, load) = (situation.draft_tokens, &situation.load);
    let (main, entry) = records(family, situation);
    let inflated = if drafted > 0 { (held.layers + 1) as f64 / held.layers.max(1) as f64 } else { 1.0 };
    let state = |width: u64| (2 * 2 * width * STATE_BYTES) as f64;
    let states = ring(4, drafted) as f64 / page as f64 * (state(held.width) + state(held.index_width));
    let per_window = (main.per_token(page) * held.layers as f64 + states * held.owners(4) as f64) * inflated;
    let low_index = (held.index_width / 2 + held.index_width / 32) as f64;
    let per_entry = |ratio: u64| match ratio {
        1 | 2 => (entry.per_token(page / ratio) + low_index) / ratio as f64,
        4 => 0.25 * main.per_token(page / 4) + 0.25 * index_bytes(held.index_width) as f64,
        ratio => main.per_token((page / ratio).max(1)) / ratio as f64,
    };
    let entries: f64 = held.owners.iter().map(|(ratio, layers)| per_entry(*ratio) * *layers as f64).sum();

    let running = running(situation);
    let reserved = reserved(family, situation, u64::from(held.window), page, running);
    let ratio = ratio(situation.options.window_ratio, WINDOW_RATIO_MILLIONTHS);
    let share = if reserved.is_some() { 0.0 } else { ratio as f64 / 1e6 };
    let per_token = share * per_window + entries * inflated;
    let fixed = states_of_requests(&held, running + 1, drafted) as f64 + reserved.unwrap_or(0) as f64 * per_window;
    let of_bytes = situation.bytes.map(|bytes| {
        let rest = (bytes as f64 - fixed).max(0.0);
        let mut tokens = (rest / per_token) as u64 / page * page;
        let padded = |tokens: u64| tokens as f64 * per_token + padding(&held, entry, low_index, tokens, page);
        while tokens > 0 && padded(tokens) > rest {
            tokens -= page;
        }
        tokens
    });
    let stated = situation.options.max_total_tokens.map(|tokens| tokens / page * page);
    let tokens = of_bytes.into_iter().chain(stated).min();
    if tokens == Some(0) {
        return Err(situation.does_not_fit("max_total_num_tokens"));
    }
    let of_windows = |tokens: u64| {
        let shared = u128::from(tokens) * ratio / 1_000_000 / u128::from(page) * u128::from(page);
        reserved.unwrap_or(u64::try_from(shared).unwrap_or(u64::MAX))
    };
    let window_tokens = tokens.map(of_windows);
    let floor = u64::from(held.window) + page;
    if reserved.is_none() && window_tokens.is_some_and(|tokens| tokens <= floor) {
        return Err(situation.does_not_fit("swa_full_tokens_ratio"));
    }

    let demand = |window| Demand::new(Growth::Paged { stride: 1, window }, 1, page, load);
    let (everything, in_window) = (demand(None), demand(Some(held.window)));
    let most = running.min(tokens.unwrap_or(u64::MAX) / 2);
    let sequences = last(most, |sequences| {
        let holds = |demand: &Demand, tokens: Option<u64>| {
            tokens.is_none_or(|tokens| (demand.units(load, sequences) - 1).saturating_mul(page) <= tokens)
        };
        holds(&everything, tokens) && holds(&in_window, window_tokens)
    });
    let windows = match reserved {
        Some(_) => "windows get what the running requests need, and those of the prefixes that are kept".to_owned(),
        None => format!("windows get 0.{} times the tokens unless stated", WINDOW_RATIO_MILLIONTHS / 100_000),
    };
    Ok(EnginePrediction {
        block_size: Some(page),
        tokens,
        window_tokens,
        sequences,
        notes: vec![
            format!("records of {} bytes a token, whatever --kv-cache-dtype says", main.bytes),
            windows,
            format!("{running} requests at most, each with rows of float32 for its entries in the making"),
        ],
        ..EnginePrediction::default()
    })
}

/// Records of windows, and of entries of one or two tokens: the packed ones of V4, but for a kernel on Blackwell that needs all heads.
fn records(family: Family, situation: &Situation<'_>) -> (Record, Record) {
    let capability = situation.options.compute_capability.unwrap_or(HOPPER);
    let is_wide = situation.budget.dtypes.kv == Some(DType::Bf16);
    let all_heads = situation.budget.parallel.tp == 1 && !is_wide;
    if family == Family::V41 && (100..110).contains(&capability) && all_heads { (V41, V41_FP4) } else { (V4, V4) }
}

/// Requests that run at once on a replica of the attention.
fn running(situation: &Situation<'_>) -> u64 {
    let parallel = situation.budget.parallel;
    // Only replicas of the attention share what is stated.
    let replicas = if parallel.ep > 1 { u64::from(parallel.dp) } else { 1 };
    (situation.budget.max_batch_size.unwrap_or(RUNNING) / replicas.max(1)).max(1)
}

/// Tokens of windows that requests hold at worst, with the tails of prefixes that are kept; none where a ratio decides.
fn reserved(family: Family, situation: &Situation<'_>, window: u64, page: u64, running: u64) -> Option<u64> {
    if family == Family::V4 || situation.options.window_ratio.is_some() {
        return None;
    }
    let drafted = situation.draft_tokens;
    let ahead = if drafted == 0 { page } else { 2 * drafted };
    let each = window + EVICTION_INTERVAL * drafted.max(1) + page + ahead;
    let tails = if situation.prefix_caching() { TAILS * running } else { 0 };
    let all =
        each * running + steps_under_way(situation) * situation.load.max_num_tokens + page + tails * (window + page);
    Some(all.next_multiple_of(page))
}

/// Bytes of rings that each request has, whatever the tokens.
fn states_of_requests(held: &Held, slots: u64, drafted: u64) -> u64 {
    let rows = |ratio: u64| (slots * ring(ratio, drafted) + ring(ratio, drafted) + 1).next_multiple_of(ratio);
    [2, 128].into_iter().map(|ratio| rows(ratio) * 2 * held.width * STATE_BYTES * held.owners(ratio)).sum()
}

/// Bytes of pages that are reserved beside the tokens of entries of one or two tokens.
fn padding(held: &Held, entry: Record, low_index: f64, tokens: u64, page: u64) -> f64 {
    let of = |ratio: u64| {
        let index_slots = ((tokens + page) / ratio + INDEX_PAGE).div_ceil(INDEX_PAGE) * INDEX_PAGE;
        let index = (index_slots - tokens / ratio) as f64 * low_index;
        (page as f64 * entry.per_token(page / ratio) + index) * held.owners(ratio) as f64
    };
    [1, 2].into_iter().map(of).sum()
}
