//! The bound of speed: what memory and multipliers of the devices allow at best, whatever the software.
//!
//! A step reads every active weight once and every cache that it attends to, and multiplies every active weight with every
//! token. The larger of both times is the least that a step can take. What kernels, exchange between ranks, scheduling and
//! sampling take comes on top, so that nothing reaches the bound. Attention multiplies in the width that keys and values are kept
//! in. Only where experts are chosen unevenly a batch touches
//! fewer of them than is taken here; speculation and prefix hits are left out.

use cacheplan_handlers::{Growth, Kind, ResourceHandler};
use cacheplan_transforms::WeightBytes;
use cacheplan_transforms::graph::{Extent, TensorOrigin};
use cacheplan_transforms::layers::BlockSpec;
use serde::Serialize;

use crate::device::Rates;
use crate::model_caches::ModelCaches;
use crate::parallel::Parallel;
use crate::plan::CachePlan;
use crate::request::PlanRequest;

/// What the devices of a layout do at best.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpeedBound {
    /// Tokens that every sequence holds.
    pub context: u64,
    /// A step of one sequence alone.
    pub one: StepBound,
    /// A step of all sequences of a replica.
    pub all: StepBound,
    /// Tokens each second of all replicas.
    pub tokens_per_second: f64,
    /// A prompt of `context` tokens, alone on a replica.
    pub prompt: StepBound,
    /// Who states the rates of the devices.
    pub source: &'static str,
}

/// The least that a step takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepBound {
    /// Sequences in it.
    pub sequences: u64,
    /// Seconds until each of them has a token, through all pipeline stages.
    pub seconds: f64,
    /// What takes them: `memory` or `products`.
    pub bound_by: &'static str,
    /// What a rank reads, and computes, in all of its stages.
    pub terms: Vec<Term>,
}

/// One part of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Term {
    /// What it is: `routed experts`, `caches`.
    pub name: &'static str,
    /// Bytes that a rank reads or writes.
    pub bytes: f64,
    /// Operations of a rank, a product and its sum as two.
    pub operations: f64,
    /// Why so many.
    pub reason: String,
    /// Seconds that the operations take.
    #[serde(skip)]
    computing: f64,
}

/// Weights of one class over all ranks.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    elements: f64,
    bytes: f64,
}

/// The routed experts of one layer.
#[derive(Clone, Copy, Debug)]
struct Experts {
    /// Elements of all of them.
    elements: f64,
    experts: f64,
    per_token: f64,
}

/// What attention of one layer computes for a token.
#[derive(Clone, Copy, Debug)]
struct Attends {
    /// Operations for each token that it looks back on.
    each: f64,
    window: Option<u64>,
}

/// What computing a prompt takes at best, from any token of it to any other.
pub struct PrefillBound {
    work: Work,
    layout: On,
}

/// How many ranks a step is on, and what each of them does at best.
#[derive(Clone, Copy)]
pub(crate) struct On {
    parallel: Parallel,
    rates: Rates,
    /// Seconds of an operation of attention.
    attending: f64,
}

impl On {
    /// Where keys and values are kept as in these caches.
    pub(crate) fn of<'h>(
        parallel: Parallel,
        rates: Rates,
        caches: impl IntoIterator<Item = &'h ResourceHandler>,
    ) -> Self {
        let is_attended = |cache: &&ResourceHandler| {
            let of_tokens = matches!(cache.growth(), Growth::Paged { .. } | Growth::PerSlotToken);
            of_tokens && *cache.kind() != Kind::IndexKey
        };
        let bytes = caches.into_iter().filter(is_attended).filter_map(|cache| cache.dtype().row_bytes(1 << 10)).min();
        Self { parallel, rates, attending: rates.seconds(bytes.map_or(2.0, |bytes| bytes as f64 / 1024.0)) }
    }
}

impl PrefillBound {
    /// Bounds the seconds of a prompt's tokens from `from` to `to`, of which the first `from` need not be computed, where others
    /// come before and behind it: every stage has one.
    pub fn seconds(&self, from: u64, to: u64) -> f64 {
        if from < to { self.work.prompt(self.layout, [from, to]).seconds } else { 0.0 }
    }

    /// The same of a prompt alone, which later stages wait for.
    pub fn alone(&self, from: u64, to: u64) -> f64 {
        if from < to { self.work.prompt_alone(self.layout, [from, to]).seconds } else { 0.0 }
    }

    /// Names who states the rates of the devices.
    pub fn source(&self) -> &'static str {
        self.layout.rates.source
    }
}

/// What a model asks of devices in a step, whatever they are.
pub(crate) struct Work {
    attention: Part,
    dense: Part,
    shared: Part,
    head: Part,
    whole: Part,
    routed: Part,
    layers: Vec<Experts>,
    attends: Vec<Attends>,
    /// Tokens that sparse attention chooses, where the model says.
    chosen: Option<u64>,
}

impl Work {
    /// `None` where the layers or the size of the weights are not known.
    pub(crate) fn of(caches: &ModelCaches, weights: Option<WeightBytes>) -> Option<Self> {
        let (model, weights) = (caches.model()?, weights?);
        let (mut work, mut table) = (Self::none(), Part::default());
        for tensor in model.graph.tensors().iter().filter(|tensor| tensor.origin == TensorOrigin::Parameter) {
            let sizes = tensor.shape.iter().map(|extent| match extent {
                Extent::Known(size) => Some(*size as f64),
                Extent::Symbol(_) => None,
            });
            let elements: f64 = sizes.collect::<Option<Vec<_>>>()?.into_iter().product();
            let bytes = elements * tensor.dtype.row_bytes(1 << 10)? as f64 / 1024.0;
            let part = match &*tensor.name.part {
                "embed_tokens.weight" => &mut table,
                "lm_head.weight" => &mut work.head,
                "mlp.weight" => &mut work.dense,
                "mlp.experts.weight" => &mut work.routed,
                "mlp.shared.weight" => &mut work.shared,
                "mla.query_down.weight" | "mla.kv_down.weight" => &mut work.whole,
                // Rows are looked up in the one; of the other only the size is known, and part of it are towers.
                "ngram.table" | "more" | "tower" | "tower.matrices" => continue,
                part if part.starts_with("mlp.") || part.starts_with("indexer.") => &mut work.whole,
                _ => &mut work.attention,
            };
            (part.elements, part.bytes) = (part.elements + elements, part.bytes + bytes);
        }
        // A head that is the table itself; a table beside it is not read.
        if work.head.elements == 0.0 {
            (work.head, table) = (table, Part::default());
        }
        let hidden = model.hidden_size? as f64;
        for block in model.layers.iter().flat_map(|layer| &layer.blocks) {
            match block {
                BlockSpec::FeedForward(dims) if dims.experts > 0 => {
                    let seen = dims.latent_size.map_or(hidden, |size| size as f64);
                    let (experts, per_token) = (dims.experts as f64, dims.experts_per_token as f64);
                    let elements = experts * dims.matrices as f64 * seen * dims.intermediate_size as f64;
                    work.layers.push(Experts { elements, experts, per_token });
                }
                BlockSpec::Attention(dims) => {
                    let channels = dims.head_dim as f64 + dims.value_dim.unwrap_or(dims.head_dim) as f64;
                    work.attends.push(Attends { each: 2.0 * dims.num_heads as f64 * channels, window: dims.window });
                }
                // As many as where keys and values are widened; of the latent itself they are more.
                BlockSpec::Mla(dims) => {
                    let channels = dims.qk_nope_head_dim as f64 + dims.qk_rope_head_dim as f64 + dims.v_head_dim as f64;
                    work.attends.push(Attends { each: 2.0 * dims.num_heads as f64 * channels, window: dims.window });
                }
                _ => {}
            }
        }
        work.chosen = model.config.get("index_topk").and_then(serde_json::Value::as_u64);
        work.weigh(weights, table, caches.weights_of_dimensions());
        (work.read() > 0.0).then_some(work)
    }

    fn none() -> Self {
        let none = Part::default();
        let (layers, attends) = Default::default();
        Self {
            attention: none,
            dense: none,
            shared: none,
            head: none,
            whole: none,
            routed: none,
            layers,
            attends,
            chosen: None,
        }
    }

    /// Bytes of all weights that some step reads.
    fn read(&self) -> f64 {
        [self.attention, self.dense, self.shared, self.head, self.whole, self.routed].iter().map(|of| of.bytes).sum()
    }

    /// Bytes that its layers' weights would save where an element took so many: of attention, dense blocks, shared and routed
    /// experts; what takes fewer already stays.
    pub(crate) fn saved_at(&self, bytes: f64) -> [u64; 4] {
        let saved = |part: Part| (part.bytes - part.elements * bytes).max(0.0).floor() as u64;
        [self.attention, self.dense, self.shared, self.routed].map(saved)
    }

    /// Bytes as headers or a budget state them, class by class where these tell the classes, else in proportion.
    fn weigh(&mut self, weights: WeightBytes, table: Part, of_dimensions: Option<WeightBytes>) {
        if of_dimensions == Some(weights) {
            return;
        }
        match weights.classes.filter(|classes| classes.attention > 0 && (classes.routed > 0) != self.layers.is_empty())
        {
            Some(classes) => {
                let told = [classes.attention, classes.dense, classes.shared, classes.routed];
                let parts = [&mut self.attention, &mut self.dense, &mut self.shared, &mut self.routed];
                for (part, bytes) in parts.into_iter().zip(told) {
                    part.bytes = bytes as f64;
                }
            }
            None => {
                let to = weights.bytes as f64 / (self.read() + table.bytes).max(1.0);
                let parts = [&mut self.attention, &mut self.dense, &mut self.shared, &mut self.head, &mut self.whole];
                parts.into_iter().chain([&mut self.routed]).for_each(|part| part.bytes *= to);
            }
        }
    }

    /// The share of routed elements that so many tokens touch where each layer's experts are chosen evenly.
    fn touched(&self, tokens: f64) -> f64 {
        let all: f64 = self.layers.iter().map(|layer| layer.elements).sum();
        let touched = self.layers.iter().map(|layer| layer.elements * touched(layer.experts, layer.per_token, tokens));
        if all > 0.0 { touched.sum::<f64>() / all } else { 0.0 }
    }

    /// The share of routed elements that one token is multiplied with.
    fn of_token(&self) -> f64 {
        self.touched(1.0)
    }

    /// What the layout does at best with `sequences` of a replica.
    pub(crate) fn bound(
        &self,
        stages: &[CachePlan],
        parallel: Parallel,
        rates: Rates,
        context: u64,
        sequences: u64,
    ) -> Option<SpeedBound> {
        let sequences = sequences.max(1);
        // Stages work at once, each on a part of the sequences.
        let parts = sequences.min(parallel.pp.into()) as f64;
        let layout = On::of(parallel, rates, kept(stages));
        let step = |sequences: u64, batch: f64| self.step(stages, layout, &[context], sequences, batch);
        let one = step(1, 1.0);
        let all = step(sequences, sequences as f64 / parts);
        let tokens_per_second = (sequences * u64::from(parallel.dp)) as f64 / all.seconds;
        let prompt = self.prompt_alone(layout, [0, context]);
        let is_sound = [one.seconds, all.seconds, prompt.seconds].iter().all(|time| time.is_finite() && *time > 0.0);
        let source = rates.source;
        is_sound.then_some(SpeedBound { context, one, all, tokens_per_second, prompt, source })
    }

    /// A step of so many sequences of a replica, of which each is as likely to be of one length from the first to the last as of
    /// another.
    pub(crate) fn decoding(
        &self,
        stages: &[CachePlan],
        parallel: Parallel,
        rates: Rates,
        [first, last]: [u64; 2],
        sequences: u64,
    ) -> StepBound {
        const PARTS: u64 = 16;
        // What a sequence reads grows with its length, so that the starts of the parts give no more than there is.
        let lengths: Vec<u64> = (0..PARTS).map(|part| first + (last - first.min(last)) * part / PARTS).collect();
        let sequences = sequences.max(1);
        let batch = sequences as f64 / sequences.min(parallel.pp.into()) as f64;
        self.step(stages, On::of(parallel, rates, kept(stages)), &lengths, sequences, batch)
    }

    /// A step of `batch` tokens, each of another sequence, whose lengths are these alike.
    fn step(
        &self,
        stages: &[CachePlan],
        On { parallel, rates, attending }: On,
        lengths: &[u64],
        sequences: u64,
        batch: f64,
    ) -> StepBound {
        let mean =
            |of: &dyn Fn(u64) -> f64| lengths.iter().map(|length| of(*length)).sum::<f64>() / lengths.len() as f64;
        let tokens = mean(&|length| self.attends.iter().map(|of| of.each * self.seen(of.window, length)).sum());
        let mut terms = self.weights(parallel, rates, [batch, batch], [1.0, 1.0]);
        let own = mean(&|length| stages.iter().map(|plan| self.caches(plan, length)).sum());
        let operations = batch * tokens / (f64::from(parallel.tp) * f64::from(parallel.cp));
        let context = match lengths {
            [one] => one.to_string(),
            lengths => format!("{} to {}", lengths[0], lengths[lengths.len() - 1]),
        };
        let reason =
            format!("{context} tokens, of windows and sparse attention what is seen; states are read and written");
        let bytes = batch * own / parallel.context_ranks() as f64;
        terms.push(Term { name: "caches", bytes, operations, reason, computing: operations * attending });
        StepBound::of(sequences, terms, rates)
    }

    /// A prompt by itself, from one of its tokens to another: a stage begins when those before it have sent its first token.
    fn prompt_alone(&self, layout: On, [from, to]: [u64; 2]) -> StepBound {
        let mut prompt = self.prompt(layout, [from, to]);
        let waiting = f64::from(layout.parallel.pp - 1);
        if waiting > 0.0 {
            prompt.seconds += waiting * self.prompt(layout, [from, from + 1]).seconds;
        }
        prompt
    }

    /// A prompt among others, from one of its tokens to another: all ranks of a replica work at once, on parts of prompts.
    fn prompt(&self, On { parallel, rates, attending }: On, [from, to]: [u64; 2]) -> StepBound {
        let stages = f64::from(parallel.pp);
        let spread = stages * f64::from(parallel.cp);
        let mut terms = self.weights(parallel, rates, [(to - from) as f64, 1.0], [stages, spread]);
        let seen = |window| self.seen_by_all(window, to) - self.seen_by_all(window, from);
        let operations: f64 = self.attends.iter().map(|of| of.each * seen(of.window)).sum();
        let operations = operations / (f64::from(parallel.tp) * spread);
        let reason = "each token with those before it, or in its window; nothing of sparse attention".into();
        terms.push(Term { name: "attention", bytes: 0.0, operations, reason, computing: operations * attending });
        StepBound::of(1, terms, rates)
    }

    /// The terms of the weights on a rank that lie on so many `stages`, and whose operations are spread over so many ranks more,
    /// for so many tokens, and for those of them whose next token is chosen.
    fn weights(
        &self,
        parallel: Parallel,
        rates: Rates,
        [tokens, chosen]: [f64; 2],
        [stages, spread]: [f64; 2],
    ) -> Vec<Term> {
        let tp = f64::from(parallel.tp);
        // Data-parallel replicas bring their tokens to the experts that they divide.
        let over = f64::from(parallel.tp.max(parallel.ep));
        let brought = tokens * over / tp;
        let touched = self.touched(brought);
        let term = |name, part: Part, ranks: f64, share: f64, tokens: f64, used: f64, reason: &str| {
            let operations = 2.0 * part.elements * used * tokens / (ranks * spread);
            let width = part.bytes / part.elements.max(1.0);
            let computing = operations * rates.seconds(width);
            Term { name, bytes: part.bytes * share / (ranks * stages), operations, reason: reason.into(), computing }
        };
        let every = "read once a step, multiplied with every token";
        let experts =
            format!("{:.1} % of them, as {brought:.0} tokens touch them where chosen evenly", 100.0 * touched);
        let terms = [
            term("attention and states", self.attention, tp, 1.0, tokens, 1.0, every),
            term("dense blocks", self.dense, tp, 1.0, tokens, 1.0, every),
            term("shared experts", self.shared, tp, 1.0, tokens, 1.0, every),
            term("head", self.head, tp, 1.0, chosen, 1.0, every),
            term("whole on every rank", self.whole, 1.0, 1.0, tokens, 1.0, every),
            term("routed experts", self.routed, over, touched, brought, self.of_token(), &experts),
        ];
        terms.into_iter().filter(|term| term.bytes > 0.0).collect()
    }

    /// Tokens that the newest one looks back on.
    fn seen(&self, window: Option<u64>, context: u64) -> f64 {
        let chosen = self.chosen.filter(|_| window.is_none());
        context.min(window.unwrap_or(u64::MAX)).min(chosen.unwrap_or(u64::MAX)) as f64
    }

    /// The same over all tokens of a prompt.
    fn seen_by_all(&self, window: Option<u64>, context: u64) -> f64 {
        let (all, most) = (context as f64, self.seen(window, context));
        most * (most + 1.0) / 2.0 + (all - most) * most
    }

    /// Bytes of one sequence's caches that a rank moves in a step; those of drafts are left out.
    fn caches(&self, plan: &CachePlan, context: u64) -> f64 {
        let is_index = |handler: &ResourceHandler| *handler.kind() == Kind::IndexKey;
        let own = || kept(std::slice::from_ref(plan));
        let is_sparse = own().any(is_index);
        let moved = |handler: &ResourceHandler| {
            let unit = handler.unit_bytes() as f64;
            match handler.growth() {
                Growth::Paged { stride, window } => {
                    let entries = context.min(window.map_or(u64::MAX, u64::from)) / u64::from(stride).max(1);
                    let chosen =
                        (is_sparse && !is_index(handler) && window.is_none()).then(|| self.chosen.unwrap_or(0));
                    unit * entries.min(chosen.unwrap_or(u64::MAX)) as f64
                }
                Growth::PerSlotToken => unit * context as f64,
                Growth::PerSequence if *handler.kind() == Kind::Ring || handler.kind().is_replay() => 0.0,
                Growth::PerSequence => 2.0 * unit,
                Growth::PerDraftPosition | Growth::Fixed => 0.0,
            }
        };
        own().map(moved).sum()
    }
}

/// The caches of the model itself in these plans.
fn kept(stages: &[CachePlan]) -> impl Iterator<Item = &ResourceHandler> {
    stages.iter().flat_map(|plan| &plan.resources).filter(|resource| !resource.drafts).map(|resource| &resource.handler)
}

/// The share of `experts` that so many tokens touch, each of which goes to `per_token` of them, chosen evenly.
fn touched(experts: f64, per_token: f64, tokens: f64) -> f64 {
    1.0 - (1.0 - (per_token / experts).min(1.0)).powf(tokens)
}

impl StepBound {
    fn of(sequences: u64, terms: Vec<Term>, rates: Rates) -> Self {
        let reading = terms.iter().map(|term| term.bytes).sum::<f64>() / rates.bytes;
        let computing: f64 = terms.iter().map(|term| term.computing).sum();
        let bound_by = if reading >= computing { "memory" } else { "products" };
        Self { sequences, seconds: reading.max(computing), bound_by, terms }
    }
}

impl SpeedBound {
    /// Tokens each second of one sequence alone.
    pub fn alone_per_second(&self) -> f64 {
        self.one.seconds.recip()
    }

    /// The bound in a sentence without its end.
    pub fn in_words(&self) -> String {
        let Self { context, all, tokens_per_second, prompt, source, .. } = self;
        let (alone, ends, prompt) = (self.alone_per_second(), all.bound_by, prompt.seconds);
        format!(
            "{alone:.0} tokens/s for one sequence alone, {tokens_per_second:.0} for all ({ends}-bound), {prompt:.2} s to read {context} tokens; a bound by the rates of {source}"
        )
    }

    /// The bound as lines below a plan's table.
    pub fn lines(&self) -> String {
        let broken =
            self.in_words().replacen("-bound), ", "-bound),\n          ", 1).replacen("; ", ";\n          ", 1);
        format!("AT BEST   {broken}\n")
    }

    /// The price of a million tokens that all replicas write, where an hour of all devices costs so much.
    pub fn per_million_tokens(&self, per_hour: f64) -> f64 {
        per_hour / 3600.0 / self.tokens_per_second * 1e6
    }
}

impl PlanRequest {
    /// What the device does at best with the sequences of these plans, one for each pipeline stage; `None` where its rates,
    /// the layers or the size of the weights are not known.
    pub fn bound(&self, stages: &[CachePlan]) -> Option<SpeedBound> {
        self.bound_of(stages, None)
    }

    /// What the device does at best with so many sequences over all replicas, of those that the plans admit.
    pub fn bound_of(&self, stages: &[CachePlan], sequences: Option<u64>) -> Option<SpeedBound> {
        let work = self.work()?;
        let plan = stages.first()?;
        let (tokens, admitted) = (plan.capacity.tokens_per_sequence, plan.capacity.sequences);
        let of_replica = sequences.map(|all| all.div_ceil(u64::from(plan.parallel.dp).max(1)));
        let sequences = of_replica.map_or(admitted, |asked| asked.min(admitted));
        work.bound(stages, plan.parallel, self.device()?.rates()?, tokens, sequences)
    }

    /// What computing prompts takes at best in the layout of a plan; `None` as for [`PlanRequest::bound`].
    pub fn prefill(&self, plan: &CachePlan) -> Option<PrefillBound> {
        let caches = self.caches().ok()?;
        let kept = caches.iter().map(|resource| &resource.handler);
        Some(PrefillBound { work: self.work()?, layout: On::of(plan.parallel, self.device()?.rates()?, kept) })
    }

    /// What its model asks of devices in a step.
    pub(crate) fn work(&self) -> Option<Work> {
        let read = self.info().weights;
        let stated = self.config().budget.memory.as_ref().and_then(|memory| memory.weights);
        let weights = stated.map(|stated| WeightBytes::new(stated.0, false).in_proportion_to(read)).or(read);
        Work::of(self.model(), weights)
    }
}
