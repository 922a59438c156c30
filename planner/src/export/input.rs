//! What the engines' tables ask of a plan.

use std::collections::BTreeSet;

use cacheplan_handlers::{DType, Kind, Split};
use serde_json::{Value, json};

use super::serving::{ExportError, Serving};
use crate::budget::Budget;
use crate::engines::{EnginePrediction, Stored, Version};
use crate::error::{EngineRefusal, PlanError};
use crate::parallel::Parallel;
use crate::plan::{CachePlan, LedgerItem, LedgerLine, Owner, PlannedResource, Pool, Unit};
use crate::size::ByteSize;

/// A share of memory that leaves room for a driver and yet is larger than a plan's caches, so that they decide.
const NOT_BINDING: f64 = 0.95;

/// A plan on its way to an engine.
pub(crate) struct Input<'a> {
    pub(crate) plan: &'a CachePlan,
    pub(crate) serving: &'a Serving,
    /// The engine's version.
    pub(crate) version: Version,
    /// Asks the engine's own model; it answers nothing where it has none, or the plan is none that it can judge.
    pub(super) predict: &'a dyn Fn(Budget) -> Prediction,
    /// Asks it how latents are stored where its flag for their dtype is this word, or says the plan's.
    pub(crate) stores: &'a dyn Fn(Option<&str>) -> Storage,
    /// The sequences that the engine's model admits, where they are fewer than the plan's.
    pub(crate) admitted: Option<u64>,
}

/// What an engine would allocate, where that is known.
pub(super) type Prediction = Option<Result<EnginePrediction, PlanError>>;

/// How it stores latents, where it has several ways.
type Storage = Result<Option<Stored>, EngineRefusal>;

/// A value with where it comes from.
pub(crate) type Sourced = Option<(Value, String)>;

/// An engine's name for a dtype, and the first version that has it.
pub(crate) type DTypeName = (DType, &'static str, Version);

impl<'a> Input<'a> {
    /// What the engine would allocate for a budget, of the plan's caches in the plan's bytes.
    pub(crate) fn predicted(&self, budget: Budget) -> Prediction {
        (self.predict)(budget)
    }

    /// Plans are read from files; sums over them are exact only once this holds.
    pub(crate) fn refuse_damage(&self) -> Result<(), ExportError> {
        let sum = self.pools().try_fold(0u64, |sum, pool| sum.checked_add(pool.bytes));
        let slots = self.plan.slots.live.checked_add(self.plan.slots.checkpoints);
        let damage = if sum.is_none() {
            "its pools have more bytes than can be counted".into()
        } else if slots.is_none() {
            "it has more slots than can be counted".into()
        } else if let Some(pool) = self.pools().find(|pool| {
            pool.reserved > pool.units || pool.units.checked_mul(pool.tokens_per_block.unwrap_or(0)).is_none()
        }) {
            format!("pool `{}` has {} units, {} of them reserved", pool.id, pool.units, pool.reserved)
        } else {
            return Ok(());
        };
        Err(ExportError::Damaged(damage))
    }

    /// Ranks that the plan was not made for must at least be able to divide what it divides.
    pub(crate) fn refuse_split(&self, engine: &'static str) -> Result<(), ExportError> {
        let layers = self.plan.model.layers.max(1);
        if self.parallel().pp > layers {
            let what = format!("{} pipeline stages are more than its {layers} layers", self.parallel().pp);
            return Err(ExportError::Unsupported { engine, what });
        }
        let (asked, planned) = (u64::from(self.parallel().tp), u64::from(self.plan.parallel.tp));
        if asked == planned {
            return Ok(());
        }
        for resource in self.resources() {
            for dim in resource.handler.shape() {
                let heads = dim.size.saturating_mul(planned);
                let divided = match dim.split {
                    Split::KvHeads => heads.is_multiple_of(asked) || asked.is_multiple_of(heads),
                    Split::Heads => heads.is_multiple_of(asked),
                    Split::KvChannels(of_rank) => {
                        let heads = of_rank.saturating_mul(planned);
                        heads.is_multiple_of(asked) || asked.is_multiple_of(heads)
                    }
                    Split::Whole | Split::Sections(_) => true,
                };
                if !divided {
                    let what =
                        format!("{asked} tensor-parallel ranks do not divide the {heads} heads of `{}`", resource.name);
                    return Err(ExportError::Unsupported { engine, what });
                }
            }
        }
        Ok(())
    }

    pub(crate) fn model(&self) -> &str {
        self.serving.model.as_deref().unwrap_or("<MODEL>")
    }

    /// The model's own caches, without those of a draft model.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &'a PlannedResource> {
        self.plan.resources.iter().filter(|resource| !resource.drafts)
    }

    /// Pools that somebody allocates.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &'a Pool> {
        self.plan.pools.iter().filter(|pool| pool.owner != Owner::Unaccounted)
    }

    pub(crate) fn paged(&self) -> impl Iterator<Item = &'a Pool> {
        self.pools().filter(|pool| pool.unit == Unit::Block)
    }

    pub(crate) fn has_states(&self) -> bool {
        self.resources().any(|resource| resource.handler.is_state())
    }

    /// The plan's value of a key of the budget, where a plan has it.
    pub(super) fn planned(&self, path: &str) -> Sourced {
        match path {
            "parallel.tp" => self.tensor_parallel(),
            "parallel.pp" => self.pipeline_parallel(),
            "parallel.dp" => self.data_parallel(),
            "parallel.ep" => self.shares_experts(),
            "parallel.dcp" => self.decode_context_parallel(),
            "engine.cache_bytes" => self.cache_bytes(),
            "engine.block_size" => self.tokens_per_block(),
            "max_seq_len" => self.max_seq_len(),
            "max_batch_size" => self.max_batch_size(),
            "max_num_tokens" => self.max_num_tokens(),
            _ => None,
        }
    }

    pub(crate) fn cache_bytes(&self) -> Sourced {
        let pools = listed(self.pools().map(|pool| pool.id.as_str()));
        Some((json!(self.plan.cache_bytes()?), format!("bytes of {pools}, and what their rounding leaves")))
    }

    pub(crate) fn max_seq_len(&self) -> Sourced {
        Some((json!(self.plan.limits.max_seq_len), "the plan's max_seq_len".into()))
    }

    pub(crate) fn max_batch_size(&self) -> Sourced {
        let (capped_by, planned) = (&self.plan.capacity.capped_by, self.plan.limits.max_batch_size);
        Some(match self.admitted.filter(|admitted| *admitted < planned) {
            Some(admitted) => (json!(admitted), format!("what the engine's model admits of the plan's {planned}")),
            None => (json!(planned), format!("the plan's max_batch_size, capped by {capped_by}")),
        })
    }

    pub(crate) fn max_num_tokens(&self) -> Sourced {
        Some((json!(self.plan.limits.max_num_tokens), "the plan's max_num_tokens".into()))
    }

    /// The tokens in a page, where all pages have as many.
    pub(crate) fn tokens_per_block(&self) -> Sourced {
        let sizes: BTreeSet<u64> = self.paged().filter_map(|pool| pool.tokens_per_block).collect();
        let one = sizes.first().filter(|_| sizes.len() == 1)?;
        Some((json!(one), "the plan's tokens_per_block".into()))
    }

    pub(crate) fn not_binding_fraction(why: &str) -> Sourced {
        Some((json!(NOT_BINDING), format!("not binding: {why}")))
    }

    /// The smallest device of which that share holds weights and caches; none where the weights are not known.
    pub(crate) fn least_device(&self) -> Option<ByteSize> {
        let held = |line: &&LedgerLine| matches!(line.name, LedgerItem::Weights | LedgerItem::DraftWeights);
        let weights: Vec<u64> = self.plan.ledger.iter().filter(held).map(|line| line.bytes).collect();
        let bytes = self.pools().map(|pool| pool.bytes).chain(weights.iter().copied()).fold(0, u64::saturating_add);
        (!weights.is_empty()).then_some(ByteSize((bytes as f64 / NOT_BINDING).ceil() as u64))
    }

    /// What is missing where the engine gets no host tier.
    pub(crate) fn no_host_tier(&self, why: &str) -> Option<String> {
        self.serving.host_bytes.map(|bytes| format!("{bytes} bytes of host memory: {why}"))
    }

    pub(crate) fn parallel(&self) -> Parallel {
        self.serving.parallel.unwrap_or(self.plan.parallel)
    }

    pub(crate) fn tensor_parallel(&self) -> Sourced {
        let tp = self.parallel().tp;
        (tp > 1).then(|| (json!(tp), "parallel.tp; the plan is that of one rank".into()))
    }

    pub(crate) fn pipeline_parallel(&self) -> Sourced {
        let pp = self.parallel().pp;
        (pp > 1).then(|| (json!(pp), "parallel.pp; the plan is that of one rank".into()))
    }

    /// The dtypes of some caches.
    fn dtypes(&self, of: Class) -> BTreeSet<DType> {
        let own = self.resources().filter(|resource| of.holds(resource.handler.kind()));
        own.map(|resource| resource.dtype).collect()
    }

    /// The engine's name for the one dtype of some caches, from `names`, that stores them as the plan does where several do not;
    /// `own` where none does and it is the model's, which a quantised checkpoint may override.
    pub(super) fn dtype_name(&self, of: Class, own: Option<&str>, names: &[DTypeName]) -> Sourced {
        let dtypes = self.dtypes(of);
        let dtype = *dtypes.first().filter(|_| dtypes.len() == 1)?;
        let source = format!("the plan's {dtype}");
        let names = names.iter().filter(|(of, _, since)| *of == dtype && *since <= self.version);
        let names: Vec<&str> = names.map(|(_, name, _)| *name).collect();
        let own = own.filter(|_| dtype == self.plan.model.dtype);
        let planned = (self.stores)(None);
        let is_planned = |name: &&str| of != Class::Kv || planned.is_ok() && (self.stores)(Some(name)) == planned;
        match names.iter().copied().find(is_planned).or(names.first().copied().filter(|_| own.is_none())) {
            Some(name) => Some((json!(name), source)),
            None => Some((json!(own?), format!("{source}, which is the model's"))),
        }
    }

    /// What is missing of caches whose dtype no key says.
    pub(super) fn chosen_dtype(&self, of: Class) -> Option<String> {
        let dtypes: BTreeSet<&str> = self.dtypes(of).into_iter().map(DType::name).collect();
        let what = of.name();
        (!dtypes.is_empty())
            .then(|| format!("{what} in {}: the engine chooses the dtype itself", listed(dtypes.into_iter())))
    }

    /// The ranks that data-parallel replicas share experts with; only where all do.
    pub(crate) fn shares_experts(&self) -> Sourced {
        let Parallel { tp, dp, ep, .. } = self.parallel();
        (ep > 1 && !self.is_dense() && ep == tp.saturating_mul(dp))
            .then(|| (json!(true), "parallel.ep: all ranks share the experts".into()))
    }

    /// Whether it is known to have no experts, which engines then refuse to divide.
    fn is_dense(&self) -> bool {
        self.routed() == Some(0)
    }

    /// Whether it is known to have experts.
    pub(crate) fn has_experts(&self) -> bool {
        self.routed().is_some_and(|bytes| bytes > 0)
    }

    /// Bytes of its routed experts.
    fn routed(&self) -> Option<u64> {
        Some(self.plan.model.weights?.classes?.routed)
    }

    pub(crate) fn data_parallel(&self) -> Sourced {
        let dp = self.parallel().dp;
        (dp > 1).then(|| (json!(dp), "parallel.dp: replicas, each with this plan".into()))
    }

    pub(crate) fn decode_context_parallel(&self) -> Sourced {
        let dcp = self.parallel().dcp;
        (dcp > 1).then(|| (json!(dcp), "parallel.dcp: ranks that divide a sequence's tokens".into()))
    }

    /// What no engine can be told; `ranks` are those that this one is.
    pub(crate) fn common_gaps(&self, ranks: &[&str]) -> Vec<String> {
        let plan = self.plan;
        let mut gaps = Vec::new();
        let mut say = |applies: bool, sentence: &dyn Fn() -> String| {
            if applies {
                gaps.push(sentence());
            }
        };
        let sizes: BTreeSet<u64> = self.paged().filter_map(|pool| pool.tokens_per_block).collect();
        say(sizes.len() > 1, &|| format!("pages of {} tokens beside each other", listed(sizes.iter())));
        let checkpoints = plan.checkpoints();
        say(checkpoints > 0, &|| format!("{checkpoints} slots for checkpoints, apart from those of running sequences"));
        let int8 = || self.pools().filter(|pool| pool.checkpoints_of.is_some() && pool.dtype == DType::Int8);
        say(int8().next().is_some(), &|| format!("int8 states in {}", listed(int8().map(|pool| pool.id.as_str()))));
        say(self.pools().any(|pool| pool.reserved > 0), &|| {
            format!(
                "reserved units in {}: engines add their own padding",
                listed(self.pools().filter(|pool| pool.reserved > 0).map(|pool| pool.id.as_str()))
            )
        });
        let local = || self.pools().filter(|pool| pool.owner == Owner::Local).map(|pool| pool.id.as_str());
        say(local().next().is_some(), &|| format!("local allocations: {}", listed(local())));
        let positions = plan.limits.draft_positions;
        say(positions > 1, &|| {
            format!("{} drafted tokens: state the draft model and the count to the engine as well", positions - 1)
        });
        let told = |name: &str| plan.pool(name).is_some() || name == "unused";
        for line in plan.ledger.iter().filter(|line| !told(line.name.name()) && line.bytes > 0) {
            say(true, &|| format!("{} = {} bytes: the engine measures or assumes its own", line.name, line.bytes));
        }
        let parallel = self.parallel();
        let ep = if self.is_dense() { 1 } else { parallel.ep };
        for (key, size) in [("dp", parallel.dp), ("ep", ep), ("cp", parallel.cp), ("dcp", parallel.dcp)] {
            say(size > 1 && !ranks.contains(&key), &|| {
                format!("parallel.{key} = {size}: state it to the engine as well")
            });
        }
        gaps
    }
}

/// `a, b and c`, with more than four cut short.
pub(crate) fn listed(items: impl Iterator<Item = impl ToString>) -> String {
    let mut items: Vec<String> = items.map(|item| item.to_string()).collect();
    if items.len() > 4 {
        let more = items.len() - 3;
        items.truncate(3);
        items.push(format!("{more} more"));
    }
    match items.pop() {
        Some(last) if items.is_empty() => last,
        Some(last) => format!("{} and {last}", items.join(", ")),
        None => "nothing".into(),
    }
}

/// Caches whose dtype an engine is told by one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Kv,
    Conv,
    Ssm,
}

impl Class {
    pub(super) const ALL: [Self; 3] = [Self::Kv, Self::Conv, Self::Ssm];

    pub(super) fn holds(self, kind: &Kind) -> bool {
        match self {
            Self::Kv => kind.is_kv(),
            Self::Conv => *kind == Kind::CausalConv,
            Self::Ssm => *kind == Kind::Ssm,
        }
    }

    /// The key of the budget.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Kv => "dtypes.kv",
            Self::Conv => "dtypes.conv",
            Self::Ssm => "dtypes.ssm",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Kv => "keys and values",
            Self::Conv => "convolution states",
            Self::Ssm => "recurrent states",
        }
    }
}
