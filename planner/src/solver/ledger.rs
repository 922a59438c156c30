//! Where the device's bytes go, line by line, each with its source.

use cacheplan_transforms::WeightBytes;

use crate::budget::{Fraction, Memory};
use crate::device::DeviceKind;
use crate::error::PlanError;
use crate::measured::MeasuredLedger;
use crate::overheads::Estimate;
use crate::parallel::Parallel;
use crate::plan::{Certainty, LedgerItem, LedgerLine, Owner, Pool};
use crate::size::ByteSize;
use crate::solver::inputs::Inputs;
use crate::solver::rank_step::RankStep;
use crate::solver::step::StepSize;
use crate::solver::weights;

/// Peak bytes that one token of a step is assumed to need besides weights and caches.
///
/// The widest tensors of a 70B decoder's layer at bf16 (query, key, value, two MLP halves) take about this much.
pub(crate) const ASSUMED_BYTES_PER_STEP_TOKEN: u64 = 256 << 10;

/// Buffers of a group of ranks: 32 channels of NCCL's `NCCL_BUFFSIZE`, 4 MiB each.
const ASSUMED_NCCL_BYTES_PER_GROUP: u64 = 128 << 20;

/// The bytes for all pools; paged pools may take a fraction of what the others leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheBytes {
    pub(crate) bytes: u64,
    /// Bytes that are missing before there is any cache.
    pub(crate) overdrawn: u64,
    pub(crate) paged_share: Fraction,
}

/// The lines so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) lines: Vec<LedgerLine>,
}

impl Ledger {
    /// What one rank of a stage holds of weights on so many pipeline stages.
    fn weights(&mut self, name: LedgerItem, told: Weights, parallel: Parallel, (stage, stages): (u32, u64)) {
        let shares = weights::shares(&told.size, parallel, stage, stages);
        let bytes = shares.iter().fold(0u64, |sum, share| sum.saturating_add(share.bytes_per_rank));
        let (source, note) = match &*shares {
            _ if shares.iter().all(|share| share.ranks == 1) => (told.source, told.note.to_owned()),
            [share] => (told.source, format!("{}, over {} shards", told.note, share.ranks)),
            _ => (Certainty::Assumed, format!("{}, divided by class", told.note)),
        };
        match source {
            // What dimensions do not tell: biases, scales of blocks, padding.
            Certainty::Assumed if told.of_dimensions => self.assumed(name, bytes, bytes / 50, note),
            _ => self.line(name, bytes, source, note),
        }
    }

    /// Whether somebody measured `item`, whose line is then added; activations are those of another step.
    fn measured(&mut self, request: &Inputs<'_>, item: LedgerItem) -> bool {
        let measured = request.measured.and_then(|measured| measured.line(&item, 0));
        let Some((bytes, source, note)) = measured else { return false };
        self.line(item, bytes, source, note);
        true
    }

    fn line(&mut self, name: LedgerItem, bytes: u64, source: Certainty, note: String) {
        self.lines.push(LedgerLine { name, bytes, source, note, uncertain_bytes: 0 });
    }

    /// A line of which nobody stated or measured the bytes, and which may take as many more.
    fn assumed(&mut self, name: LedgerItem, bytes: u64, uncertain_bytes: u64, note: String) {
        self.lines.push(LedgerLine { name, bytes, source: Certainty::Assumed, note, uncertain_bytes });
    }

    /// What is on a GPU before anything is; as much again is uncertain, for logs of one rank alone show little of libraries.
    fn context(&mut self, request: &Inputs<'_>) {
        let logged =
            Estimate::of(&LedgerItem::Context, request.engine.map(|engine| engine.name), request.device, |row| {
                row.bytes
            });
        if let Some(Estimate { middle, most, note }) = logged {
            self.assumed(LedgerItem::Context, middle, middle.max(most - middle), note);
        }
    }

    /// What the steps of so many layers are captured in.
    fn graphs(&mut self, request: &Inputs<'_>, layers: u64) {
        if request.engine.is_some_and(|engine| !engine.captures_apart) {
            return;
        }
        let logged =
            Estimate::of(&LedgerItem::Graphs, request.engine.map(|engine| engine.name), request.device, |row| {
                row.bytes / row.layers
            });
        if let Some(Estimate { middle, most, note }) = logged {
            let note = format!("{layers} layers at {}, {note}", ByteSize(middle));
            self.assumed(LedgerItem::Graphs, layers * middle, layers * (most - middle), note);
        }
    }

    /// What assumed lines may take more, kept free where the budget wants that.
    pub(crate) fn margin(&mut self) {
        let bytes = self.lines.iter().fold(0u64, |sum, line| sum.saturating_add(line.uncertain_bytes));
        self.line(LedgerItem::Margin, bytes, Certainty::Assumed, "what assumed lines may take more".into());
    }

    /// What assumed lines may take more.
    fn uncertain(&self) -> u128 {
        self.lines.iter().map(|line| u128::from(line.uncertain_bytes)).sum()
    }

    /// Bytes of all lines so far.
    pub(crate) fn sum(&self) -> u64 {
        self.lines.iter().fold(0, |sum, line| sum.saturating_add(line.bytes))
    }

    /// One line per managed pool, one for all local ones, and what nobody takes.
    pub(crate) fn add_pools(&mut self, pools: &[Pool], memory: Option<CacheBytes>) {
        let mut taken = 0u64;
        for pool in pools {
            taken = taken.saturating_add(pool.bytes);
            if pool.owner.is_managed() {
                let note = format!("{} units of {}", pool.units, ByteSize(pool.unit_bytes));
                self.line(LedgerItem::Pool(pool.id.clone()), pool.bytes, Certainty::Exact, note);
            }
        }
        let local = pools.iter().filter(|pool| pool.owner == Owner::Local);
        let (count, bytes) = local.fold((0u64, 0u64), |(count, sum), pool| (count + 1, sum.saturating_add(pool.bytes)));
        if count > 0 {
            self.line(LedgerItem::Local, bytes, Certainty::Exact, format!("{count} allocations outside the managers"));
        }
        if let Some(memory) = memory {
            let unused = memory.bytes.saturating_sub(taken);
            self.line(
                LedgerItem::Unused,
                unused,
                Certainty::Exact,
                "caches' budget left by rounding, limits or share".into(),
            );
        }
    }
}

/// A model's weights over all ranks, and how they are known.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    pub(crate) size: WeightBytes,
    source: Certainty,
    note: &'static str,
    /// Whether only dimensions tell it.
    of_dimensions: bool,
}

/// The model's weights, if they are known.
pub(crate) fn weights(request: &Inputs<'_>) -> Option<Weights> {
    told(request.budget.memory.as_ref().and_then(|memory| memory.weights), request.model.weights)
}

/// The draft model's weights, if there is one and they are known.
pub(crate) fn draft_weights(request: &Inputs<'_>) -> Option<Weights> {
    let stated = request.budget.speculation.as_ref().and_then(|speculation| speculation.draft_weights);
    told(stated, request.draft.and_then(|draft| draft.model.weights))
}

/// The model's prediction layers, which weights that follow from dimensions leave out; weights that were stated, read from
/// headers or measured are taken to hold them.
fn head_weights(request: &Inputs<'_>) -> Option<Weights> {
    let speculation = request.budget.speculation.as_ref().filter(|speculation| speculation.draft_weights.is_none())?;
    let layers = speculation.mtp_layers;
    let states_weights = request.budget.memory.as_ref().is_some_and(|memory| memory.weights.is_some());
    let is_measured = request.measurement.is_some() || request.measured.is_some_and(|of| of.lines.weights.is_some());
    let one = request.prediction.weights.filter(|_| layers > 0 && !states_weights && !is_measured)?;
    let all = WeightBytes::new(one.bytes.saturating_mul(layers.into()), false).in_proportion_to(Some(one));
    told(None, Some(all))
}

pub(crate) fn told(stated: Option<ByteSize>, read: Option<WeightBytes>) -> Option<Weights> {
    let (size, source, note) = match (stated, read) {
        (Some(stated), _) => {
            let size = WeightBytes::new(stated.0, false).in_proportion_to(read);
            (size, Certainty::Assumed, "stated in the budget")
        }
        (None, Some(read)) if read.exact => (read, Certainty::Exact, "sum of the tensors' headers"),
        (None, Some(read)) if read.unproven => (read, Certainty::Assumed, "stated by files that are not all there"),
        (None, Some(read)) => (read, Certainty::Assumed, "computed from the model's dimensions"),
        (None, None) => return None,
    };
    let of_dimensions = stated.is_none() && !size.exact && !size.unproven;
    Some(Weights { size, source, note, of_dimensions })
}

/// What is there besides caches: weights, activations, context, reserve. Only activations depend on what is in a step.
pub(crate) struct Outside<'a> {
    before: Ledger,
    activations: Activations<'a>,
    after: Ledger,
    /// Whether what assumed lines may take more is kept free too.
    safe: bool,
}

/// What a step takes besides weights and caches.
enum Activations<'a> {
    /// However large it is.
    Known(LedgerLine),
    /// In proportion to what an engine logged.
    Logged(&'a MeasuredLedger),
    /// So much for each token of a model whose layers nobody read.
    OfTokens,
    /// The larger of its tokens in the widest layer and its logits.
    OfLayers(RankStep),
}

impl Activations<'_> {
    fn of<'a>(request: &Inputs<'a>, stated: Option<ByteSize>) -> Activations<'a> {
        let known = |bytes, source, note: &str| {
            Activations::Known(LedgerLine {
                name: LedgerItem::Activations,
                bytes,
                source,
                note: note.into(),
                uncertain_bytes: 0,
            })
        };
        match (request.measurement, stated, request.measured) {
            (Some(measured), _, _) => {
                known(measured.forward_bytes, Certainty::Measured, "peak of one profiled forward")
            }
            (None, Some(stated), _) => known(stated.0, Certainty::Assumed, "stated in the budget"),
            (None, None, Some(measured)) if measured.lines.activations.is_some() => Activations::Logged(measured),
            (None, None, _) => match request.step {
                Some(step) => Activations::OfLayers(RankStep::of(step, request)),
                None => Activations::OfTokens,
            },
        }
    }

    /// The bytes of a step, and how many more they may be.
    fn bytes(&self, size: StepSize) -> (u64, u64) {
        let assumed = |bytes: u64| (bytes, bytes / 2);
        match self {
            Self::Known(line) => (line.bytes, line.uncertain_bytes),
            Self::Logged(_) => (self.line(size).bytes, 0),
            Self::OfTokens => assumed(size.tokens.saturating_mul(ASSUMED_BYTES_PER_STEP_TOKEN)),
            Self::OfLayers(step) => assumed(step.peak(size)),
        }
    }

    fn line(&self, size: StepSize) -> LedgerLine {
        let StepSize { tokens, logit_rows } = size;
        let note = match self {
            Self::Known(line) => return line.clone(),
            Self::Logged(measured) => {
                let logged = measured.line(&LedgerItem::Activations, tokens);
                let (bytes, source, note) = logged.unwrap_or((0, Certainty::Measured, String::new()));
                return LedgerLine { name: LedgerItem::Activations, bytes, source, note, uncertain_bytes: 0 };
            }
            Self::OfTokens => format!("{tokens} tokens a step at {}", ByteSize(ASSUMED_BYTES_PER_STEP_TOKEN)),
            Self::OfLayers(step) => {
                let most = if step.is_widest_in_layers(size) {
                    format!("{tokens} tokens a step in the widest layer, {} each", ByteSize(step.of_token))
                } else {
                    format!("logits of {logit_rows} tokens, {} each", ByteSize(step.of_logits))
                };
                let index = ByteSize(step.of_index);
                if step.of_index == 0 { most } else { format!("{most}; {index} for keys of the indexer") }
            }
        };
        let (bytes, uncertain_bytes) = self.bytes(size);
        LedgerLine { name: LedgerItem::Activations, bytes, source: Certainty::Assumed, note, uncertain_bytes }
    }
}

impl<'a> Outside<'a> {
    pub(crate) fn of(request: &Inputs<'a>) -> Result<Self, PlanError> {
        let memory = request.budget.memory.clone().unwrap_or_default();
        if let Some(measured) = request.measured {
            measured.refuse_other_ranks(request.budget.parallel)?;
        }
        Ok(Self {
            before: before_activations(request, &memory),
            activations: Activations::of(request, memory.activations),
            after: after_activations(request, &memory),
            safe: memory.safe,
        })
    }

    /// The same at most, as they are taken to be, and at least: what nobody stated or measured may also be less.
    pub(crate) fn between(&self, size: StepSize) -> [u64; 3] {
        let step = self.activations.line(size);
        let lines = || self.before.lines.iter().chain([&step]).chain(&self.after.lines);
        let sum = |of: fn(&LedgerLine) -> u64| lines().map(of).fold(0, u64::saturating_add);
        [
            sum(|line| line.bytes.saturating_add(line.uncertain_bytes)),
            sum(|line| line.bytes),
            sum(|line| match line.name {
                // What dimensions do not tell comes on top of what they do.
                LedgerItem::Weights | LedgerItem::DraftWeights => line.bytes,
                _ => line.bytes.saturating_sub(line.uncertain_bytes),
            }),
        ]
    }

    /// Bytes besides caches where such a step runs.
    pub(crate) fn bytes(&self, size: StepSize) -> u64 {
        let (step, more) = self.activations.bytes(size);
        let margin = if self.safe { self.before.uncertain() + u128::from(more) + self.after.uncertain() } else { 0 };
        let bytes = u128::from(self.before.sum()) + u128::from(step) + u128::from(self.after.sum()) + margin;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The lines of such a step.
    pub(crate) fn ledger(&self, size: StepSize) -> Ledger {
        let mut lines = self.before.lines.clone();
        lines.push(self.activations.line(size));
        lines.extend_from_slice(&self.after.lines);
        let mut ledger = Ledger { lines };
        if self.safe {
            ledger.margin();
        }
        ledger
    }
}

/// Weights, and what a process has on the device before a step.
fn before_activations(request: &Inputs<'_>, memory: &Memory) -> Ledger {
    let mut ledger = Ledger::default();
    let parallel = request.budget.parallel;
    if let Some(measured) = request.measurement {
        let note = "weights and what the process holds";
        ledger.line(LedgerItem::Resident, measured.resident_bytes, Certainty::Measured, note.into());
        return ledger;
    }
    let stages = parallel.stages_of(request.stage, request.model.layers);
    let is_measured = memory.weights.is_none() && ledger.measured(request, LedgerItem::Weights);
    if let (false, Some(weights), Some(stages)) = (is_measured, weights(request), stages) {
        ledger.weights(LedgerItem::Weights, weights, parallel, (request.stage, stages));
    }
    match memory.context {
        Some(bytes) => ledger.line(LedgerItem::Context, bytes.0, Certainty::Assumed, "stated in the budget".into()),
        None if ledger.measured(request, LedgerItem::Context) => {}
        None if is_device(request) => ledger.context(request),
        None => {}
    }
    let groups = u64::from(parallel.groups());
    if !ledger.measured(request, LedgerItem::Nccl) && runs_layers(request) && groups > 0 {
        let bytes = groups * ASSUMED_NCCL_BYTES_PER_GROUP;
        let note = format!("{groups} group(s) of ranks, 32 channels of 4 MiB each");
        ledger.assumed(LedgerItem::Nccl, bytes, bytes, note);
    }
    ledger
}

/// Captured graphs, the draft model's weights, and what nobody may use.
fn after_activations(request: &Inputs<'_>, memory: &Memory) -> Ledger {
    let mut ledger = Ledger::default();
    let parallel = request.budget.parallel;
    let stages = |layers: u32| parallel.stages_of(request.stage, layers);
    match memory.graphs {
        Some(bytes) => {
            let note = "captured CUDA graphs, stated in the budget";
            ledger.line(LedgerItem::Graphs, bytes.0, Certainty::Assumed, note.into());
        }
        None if ledger.measured(request, LedgerItem::Graphs) => {}
        None => {
            let layers =
                stages(request.model.layers).map_or(0, |stages| u64::from(request.model.layers).div_ceil(stages));
            if runs_layers(request) && request.measurement.is_none() && layers > 0 {
                ledger.graphs(request, layers);
            }
        }
    }
    // Weights that are stated without a model are divided over all ranks.
    let layers = request.draft.map_or(parallel.pp, |draft| draft.model.layers);
    if let (Some(weights), Some(stages)) = (draft_weights(request), stages(layers)) {
        ledger.weights(LedgerItem::DraftWeights, weights, parallel, (request.stage, stages));
    }
    // Engines run the prediction layers where the last layer is.
    if let Some(weights) = head_weights(request).filter(|_| request.stage + 1 == parallel.pp) {
        ledger.weights(LedgerItem::DraftWeights, weights, parallel, (0, 1));
    }
    let host = request.budget.host.filter(|_| request.device.is_some_and(|device| device.kind != DeviceKind::Cuda));
    if let Some(host) = host {
        let note = "offloaded caches, in the same memory as the device's";
        ledger.line(LedgerItem::HostTier, host.bytes.0, Certainty::Assumed, note.into());
    }
    if let Some(reserve) = memory.reserve {
        ledger.line(LedgerItem::Reserve, reserve.0, Certainty::Exact, "stated in the budget".into());
    }
    ledger
}

/// Of a model whose layers nobody read only the least is assumed.
fn runs_layers(request: &Inputs<'_>) -> bool {
    is_device(request) && request.step.is_some()
}

fn is_device(request: &Inputs<'_>) -> bool {
    request.device.is_some_and(|device| device.kind != DeviceKind::Cpu)
}
