//! What keeps an engine from holding more: that which, raised, admits more.

use cacheplan_planner::{ByteSize, EngineSpec, PlanRequest};

use crate::question::Question;

/// What an engine is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cap {
    /// The most sequences that it runs.
    Sequences,
    /// Those that it runs of them at once, stated.
    Running(u64),
    /// Slots for states, stated.
    Slots,
    /// Tokens whatever the bytes.
    Tokens,
    /// Blocks whatever the bytes.
    Blocks,
    /// The bytes for caches.
    Bytes,
}

impl Cap {
    const ALL: [Self; 5] = [Self::Sequences, Self::Slots, Self::Tokens, Self::Blocks, Self::Bytes];

    /// Those that each admit more where they are raised; where none does, those that do together.
    pub(crate) fn of(request: &PlanRequest, engine: EngineSpec, sequences: u64) -> Vec<Self> {
        let stated: Vec<Self> = Self::ALL.into_iter().filter(|cap| cap.value(request).is_some()).collect();
        let admits = |caps: &[Self]| {
            // Many slots may take the bytes of a sequence, and one more may serve none.
            let few = if caps.contains(&Self::Slots) { 8 } else { 0 };
            (1..=few).chain([u64::MAX]).any(|more| {
                let raised = caps.iter().fold(request.clone(), |request, cap| cap.raised(&request, more));
                raised.predict(engine).is_ok_and(|predicted| predicted.sequences > sequences)
            })
        };
        let alone: Vec<Self> = stated.iter().copied().filter(|cap| admits(&[*cap])).collect();
        if !alone.is_empty() {
            return alone;
        }
        let mut pairs = stated
            .iter()
            .enumerate()
            .flat_map(|(at, one)| stated[at + 1..].iter().map(move |other| vec![*one, *other]));
        let together = pairs.find(|pair| admits(pair));
        together.unwrap_or(stated)
    }

    fn value(self, request: &PlanRequest) -> Option<u64> {
        let budget = &request.config().budget;
        match self {
            Self::Sequences => budget.max_batch_size,
            Self::Running(most) => Some(most),
            Self::Slots => budget.engine.state_slots,
            Self::Tokens => budget.engine.max_total_tokens,
            Self::Blocks => budget.engine.num_blocks,
            Self::Bytes => {
                budget.engine.cache_bytes.map(|bytes| bytes.0).filter(|_| budget.engine.num_blocks.is_none())
            }
        }
    }

    /// By so much, or twice where that is more than all.
    fn raised(self, request: &PlanRequest, by: u64) -> PlanRequest {
        let more = |value: u64| if by == u64::MAX { value.saturating_mul(2) } else { value.saturating_add(by) };
        let twice = |value: u64| value.saturating_mul(2);
        request.changed(|budget| match self {
            Self::Sequences => budget.max_batch_size = budget.max_batch_size.map(twice),
            // The planner does not know it.
            Self::Running(_) => {}
            Self::Slots => budget.engine.state_slots = budget.engine.state_slots.map(more),
            Self::Tokens => budget.engine.max_total_tokens = budget.engine.max_total_tokens.map(twice),
            Self::Blocks => budget.engine.num_blocks = budget.engine.num_blocks.map(twice),
            Self::Bytes => {
                budget.engine.cache_bytes = budget.engine.cache_bytes.map(|bytes| ByteSize(twice(bytes.0)));
            }
        })
    }

    /// The flag that states it.
    pub(crate) fn flag(self, question: &Question) -> Option<&'static str> {
        let name = match self {
            Self::Sequences => question.engine.engine.sequences_flag(),
            Self::Running(_) => Question::running_flag(question.engine.engine.name()),
            Self::Slots => "--max-mamba-cache-size",
            Self::Tokens => "--max-total-tokens",
            Self::Blocks => "--num-gpu-blocks-override",
            Self::Bytes => return None,
        };
        question.has_flag(name).then_some(name)
    }

    /// All of them in words.
    pub(crate) fn words(caps: &[Self], question: &Question, request: Option<&PlanRequest>) -> String {
        let one = |cap: &Self| {
            let what = match cap {
                Self::Sequences => "the most sequences",
                Self::Running(_) => "the most sequences at once",
                Self::Slots => "the slots for states",
                Self::Tokens => "the most tokens",
                Self::Blocks => "the blocks that are stated",
                Self::Bytes => return "the bytes for caches".to_owned(),
            };
            let value = request.and_then(|request| cap.value(request)).unwrap_or(0);
            // Of several stages each has as many, and of replicas of the attention each a part.
            let is_part = question.attention_replicas() > 1 && matches!(cap, Self::Sequences | Self::Slots);
            let written = |flag| question.count(flag).filter(|_| is_part || matches!(cap, Self::Running(_)));
            match cap.flag(question) {
                Some(flag) if is_part && written(flag).is_none() => format!("{what}, {value} of each replica"),
                Some(flag) => format!("{what}, {flag} {}", written(flag).unwrap_or(value)),
                None => format!("{what}, {value}"),
            }
        };
        caps.iter().map(one).collect::<Vec<_>>().join(" and ")
    }
}
