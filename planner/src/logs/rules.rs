//! What an engine's rules give for what its log says that it was told.

use cacheplan_handlers::{DType, Kind, ResourceHandler};

use super::as_engine::{AsEngine, LoggedSettings};
use super::{EngineLog, Fact, Logged};
use crate::engines::{EnginePrediction, EngineSpec, Version};

/// Drafted tokens that may explain a log which does not say them.
const TRIED_DRAFTS: std::ops::RangeInclusive<u64> = 1..=8;

/// Bytes that the engine has for caches, as far as it says.
pub(super) fn memory(log: &EngineLog, planned: &EnginePrediction) -> Option<Logged> {
    if log.dialect().divides_cells {
        return None;
    }
    log.get(Fact::CacheBytes).or_else(|| {
        let parts =
            [Fact::SsmBytes, Fact::ConvBytes, Fact::SpeculationBytes].into_iter().filter_map(|part| log.get(part));
        let pools = parts.fold(log.get(Fact::KvBytes)?, Logged::plus);
        // TensorRT-LLM does not log its states.
        let unsaid = if log.dialect().leaves_out_states { planned.state_bytes.unwrap_or(0) } else { 0 };
        // SGLang's pool of what drafts, of as many tokens, is left out of what is read.
        let pages = planned.kv_bytes.filter(|bytes| *bytes > 0);
        let drafts = |logged: u64| {
            let share = u128::from(logged) * u128::from(planned.draft_share_bytes.unwrap_or(0));
            pages.map_or(0, |pages| u64::try_from(share / u128::from(pages)).unwrap_or(u64::MAX))
        };
        let logged = log.get(Fact::KvBytes)?;
        let drafts = Logged { low: drafts(logged.low), high: drafts(logged.high) };
        Some(pools.plus(Logged::exact(unsaid)).plus(drafts))
    })
}

/// What the engine was told, by its log; absent where the log leaves out what it divided.
pub(super) fn really_told(
    log: &EngineLog,
    told: &LoggedSettings,
    planned: &EnginePrediction,
    makes_block: bool,
) -> Option<(LoggedSettings, LoggedSettings)> {
    let mut really = *told;
    really.max_seq_len = log.count(Fact::MaxSeqLen).unwrap_or(told.max_seq_len);
    really.max_batch_size = log.count(Fact::MaxBatchSize).unwrap_or(told.max_batch_size);
    really.draft_tokens = log.count(Fact::DraftTokens).unwrap_or(told.draft_tokens);
    if log.dialect().divides_cells {
        let cells = log.count(Fact::Tokens)?;
        let sequences = log.count(Fact::MaxBatchSize).or(log.count(Fact::StateSlots)).unwrap_or(told.max_batch_size);
        really.state_slots = Some(sequences);
        really.max_batch_size = sequences;
        let shared = log.switch(Fact::SharedCells).unwrap_or(sequences == 1);
        really.shared_cells = shared.then_some(cells);
        really.max_seq_len = if shared { cells } else { cells / sequences.max(1) };
        return Some((really, really));
    }
    really.max_num_tokens = log.count(Fact::MaxNumTokens).unwrap_or(told.max_num_tokens);
    if !makes_block {
        really.tokens_per_block = log.count(Fact::TokensPerBlock).or(told.tokens_per_block);
    }
    really.max_total_tokens = log.count(Fact::MaxTotalTokens).or(told.max_total_tokens);
    if told.state_slots.is_some() {
        really.state_slots = log.count(Fact::StateSlots).or(told.state_slots);
    }
    let bytes = memory(log, planned)?;
    Some((LoggedSettings { bytes: Some(bytes.low), ..really }, LoggedSettings { bytes: Some(bytes.high), ..really }))
}

/// What the engine's rules give for what it was told, for the least and the most that its printed memory may be.
pub(super) struct Expected {
    least: EnginePrediction,
    most: EnginePrediction,
    max_seq_len: u64,
}

impl Expected {
    /// `None` where the log leaves out what it takes, or the engine's model finds no room.
    pub(super) fn of(
        caches: &AsEngine<'_>,
        engine: EngineSpec,
        told: Option<&(LoggedSettings, LoggedSettings)>,
    ) -> Option<Self> {
        let (least, most) = told?;
        let max_seq_len = least.max_seq_len;
        let most = caches.predict(engine, most).ok()?;
        Some(Self { least: caches.predict(engine, least).ok()?, most, max_seq_len })
    }

    /// Whether the rules give what was logged.
    pub(super) fn meets(&self, fact: Fact, logged: Logged) -> bool {
        let at = |prediction| outcome(prediction, fact, self.max_seq_len);
        match (at(&self.least), at(&self.most)) {
            (Some(one), Some(other)) => logged.meets(Logged { low: one.min(other), high: one.max(other) }),
            _ => true,
        }
    }
}

/// What the log says that the engine made of what it was told.
pub(super) fn outcomes(log: &EngineLog, makes_block: bool) -> impl Iterator<Item = (Fact, Logged)> {
    const OUTCOMES: [Fact; 12] = [
        Fact::TokensPerBlock,
        Fact::BlocksPerSequence,
        Fact::Groups,
        Fact::NumBlocks,
        Fact::Tokens,
        Fact::WindowTokens,
        Fact::Concurrency,
        Fact::KvBytes,
        Fact::StateSlots,
        Fact::SsmBytes,
        Fact::ConvBytes,
        Fact::SpeculationBytes,
    ];
    let is_told = move |fact: Fact| match fact {
        Fact::TokensPerBlock => !makes_block,
        Fact::StateSlots => log.dialect().slots_are_told,
        _ => false,
    };
    let said = OUTCOMES.into_iter().filter(move |fact| !is_told(*fact));
    said.filter_map(|fact| {
        let logged = log.get(fact);
        // Where the sum is left out, the parts stand for it.
        let parts = || log.get(Fact::KvBuffers).filter(|_| fact == Fact::KvBytes);
        Some((fact, logged.or_else(parts)?))
    })
}

/// The same of a prediction.
pub(super) fn outcome(prediction: &EnginePrediction, fact: Fact, max_seq_len: u64) -> Option<u64> {
    match fact {
        Fact::TokensPerBlock => prediction.block_size,
        Fact::BlocksPerSequence => Some(max_seq_len.div_ceil(prediction.block_size?)),
        Fact::Groups => prediction.groups,
        Fact::NumBlocks => prediction.num_blocks,
        Fact::Tokens => prediction.tokens,
        Fact::WindowTokens => prediction.window_tokens,
        Fact::Concurrency => prediction.concurrency.map(|times| (times * 100.0).round() as u64),
        Fact::KvBytes => prediction.kv_bytes,
        Fact::StateSlots => prediction.state_slots,
        Fact::SsmBytes => prediction.ssm_bytes,
        Fact::ConvBytes => prediction.conv_bytes,
        Fact::SpeculationBytes => prediction.speculation_bytes,
        _ => None,
    }
}

/// The one change under which the engine's rules give every number of the log, if there is one.
pub(super) fn explanation(
    caches: &AsEngine<'_>,
    log: &EngineLog,
    engine: EngineSpec,
    said: Option<Version>,
    makes_block: bool,
    told: Option<&(LoggedSettings, LoggedSettings)>,
) -> Option<String> {
    let (least, most) = told?;
    let gives = |caches: &AsEngine<'_>, engine: EngineSpec, told: &(LoggedSettings, LoggedSettings)| {
        let expected = Expected::of(caches, engine, Some(told));
        expected.is_some_and(|expected| outcomes(log, makes_block).all(|(fact, logged)| expected.meets(fact, logged)))
    };
    let unless = |what: String| Some(format!("would be as logged with {what}"));
    if log.prefix_caching().is_none() {
        let on = Some(true);
        if gives(
            caches,
            engine,
            &(LoggedSettings { prefix_caching: on, ..*least }, LoggedSettings { prefix_caching: on, ..*most }),
        ) {
            return unless("prefix caching on".into());
        }
    }
    for dtype in [DType::F8E4m3, DType::Bf16] {
        let stored = caches.stored_as(dtype, ResourceHandler::is_paged);
        if stored.is_some_and(|stored| gives(&stored, engine, &(*least, *most))) {
            return unless(format!("keys and values in {dtype}"));
        }
    }
    for dtype in [DType::F32, DType::Bf16] {
        let is_recurrent = |handler: &ResourceHandler| *handler.kind() == Kind::Ssm;
        let stored = caches.stored_as(dtype, is_recurrent);
        if stored.is_some_and(|stored| gives(&stored, engine, &(*least, *most))) {
            return unless(format!("recurrent states in {dtype}"));
        }
    }
    if log.get(Fact::DraftTokens).is_none() && least.draft_tokens == 0 {
        for draft_tokens in TRIED_DRAFTS {
            if gives(
                caches,
                engine,
                &(LoggedSettings { draft_tokens, ..*least }, LoggedSettings { draft_tokens, ..*most }),
            ) {
                return unless(format!("{draft_tokens} drafted tokens"));
            }
        }
    }
    // Of a version that nobody says, the older ones whose rules were read.
    let older = engine.engine.rules().read.iter().rev().filter(|version| said.is_none() && **version < engine.version);
    let mut older = older.map(|version| EngineSpec { version: *version, ..engine });
    let older = older.find(|older| gives(caches, *older, &(*least, *most)))?;
    unless(format!("the rules of {} {}", log.engine, older.version_name()))
}
