//! Which devices, how many and divided how hold so many sequences of so many tokens.
//!
//! Every layout that an engine can run on so many devices is planned; nothing is measured.

mod answer;
mod fewer_bits;
mod prices;
mod trial;

pub(crate) use answer::cost;
use answer::{Weights, in_order, needed};
use trial::{Asking, Tried, Variant, tried};

pub use answer::{Answer, AtBest, Curve, FewerBits, Fit, Freed, OtherWeights, Served};
pub(crate) use prices::money;
pub use prices::{Price, Prices};

use crate::bound::Work;
use crate::config::Config;
use crate::device::{DeviceInfo, DeviceKind};
use crate::engines::{EngineSpec, Layout};
use crate::error::PlanError;
use crate::parallel::Parallel;
use crate::request::PlanRequest;
use crate::size::ByteSize;
use crate::solver::solve::last;
use crate::stated::Stated;
use crate::weight_bits::StatedWeights;

/// What shall be held, and on what.
#[derive(Clone, Debug)]
pub struct FitQuestion {
    /// What the model is called in the commands that are printed; its type where absent.
    pub model: Option<String>,
    /// What was stated beside the model's files, as words of `cacheplan plan`, which the commands that are printed repeat.
    pub stated: Vec<String>,
    /// Tokens of each sequence.
    pub context: u64,
    /// Sequences at once.
    pub sequences: u64,
    /// The devices to choose among, each with the name that it was asked for by.
    pub devices: Vec<(String, DeviceInfo)>,
    /// The most devices.
    pub max_devices: u32,
    /// Percent more sequences than are asked for that a layout must have room for before it holds them.
    pub margin: u32,
    /// Weights over all ranks, where the model does not tell or others are meant.
    pub weights: Option<StatedWeights>,
    /// What the devices cost.
    pub prices: Prices,
}

/// Whose rules answer: engines that are asked what they admit, and the plan's own pools.
#[derive(Clone, Copy)]
pub struct Engines<'a> {
    /// Which.
    pub asked: &'a [EngineSpec],
    /// Whether the plan's own pools answer too.
    pub own: bool,
    /// What an engine asks of each device that is told so; none where it refuses that, or cannot be told it.
    pub asks: &'a dyn Fn(Told<'_>) -> Option<AskedOf>,
    /// Sequences of all replicas, at least and at most, as the engine's own command is answered that is told so.
    pub between: &'a dyn Fn(Told<'_>) -> [u64; 2],
}

/// What an engine is told: a layout of such devices.
#[derive(Clone, Copy)]
pub struct Told<'a> {
    /// Which engine.
    pub engine: EngineSpec,
    /// Each of the devices.
    pub device: &'a DeviceInfo,
    /// How many there are, and what each does.
    pub layout: &'a Layout,
    /// What all weights take, where that is stated and the engine does not make them so itself.
    pub weights: Option<ByteSize>,
}

/// What an engine that is told a layout asks of one of its devices.
#[derive(Clone)]
pub struct AskedOf {
    /// The model, and the budget that its command states.
    pub request: PlanRequest,
    /// What it has for caches, where it allocates what it is told instead of dividing what it finds.
    pub cache_bytes: Option<u64>,
    /// Tokens of a sequence at most, where it gives none as many as it is told.
    pub longest: Option<u64>,
}

impl Engines<'_> {
    /// None of them: the plan's own pools.
    pub const NONE: Engines<'static> = Engines { asked: &[], own: true, asks: &|_| None, between: &|_| [0; 2] };
}

impl FitQuestion {
    /// Sequences that a layout must have room for.
    fn needed(&self) -> u64 {
        needed(self.sequences, self.margin)
    }

    /// The devices to choose among where none are named, by name and comma.
    pub const DEVICES: &'static str = "l4,rtx-4090,rtx-5090,l40s,a100-80gb,rtx-pro-6000,h100,h200,b200,gb200,gaudi-3,mi300x,mi325x,mi355x,m4-max-128gb,\
         m3-ultra-512gb";
}

/// The lengths of a curve: 1,024 to 1,048,576 tokens.
const CURVE: std::ops::RangeInclusive<u32> = 10..=20;

/// A device by the name that it was asked for by, and how a model can be divided over so many of it.
type OnDevice<'a> = (&'a str, &'a DeviceInfo, Vec<Parallel>);

impl PlanRequest {
    /// Plans every layout of the model.
    ///
    /// # Errors
    /// A budget that states what is looked for, a model of whose weights nobody knows the size, or whose layers nobody read.
    pub fn fit(&self, question: &FitQuestion) -> Result<Answer, PlanError> {
        self.fit_beside(question, Engines::NONE)
    }

    /// The same by the rules of engines, of each layout that they can be told, and by the plan's own where these are asked too.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn fit_beside(&self, question: &FitQuestion, engines: Engines<'_>) -> Result<Answer, PlanError> {
        self.refuse_sought()?;
        let (asked, work) = self.asked_of(question)?;
        let own = engines.own.then_some(None);
        let asks: Vec<Option<EngineSpec>> = own.into_iter().chain(engines.asked.iter().copied().map(Some)).collect();
        let layouts = asked.layouts(question)?;
        let mut fits = Vec::new();
        for (name, device, layouts) in &layouts {
            let variants: Vec<Variant> = asks.iter().flat_map(|engine| Variant::all(&asked, *engine, device)).collect();
            for (parallel, variant) in
                layouts.iter().flat_map(|parallel| variants.iter().map(move |it| (*parallel, *it)))
            {
                let tried = asked.varied(variant, device, parallel, question, engines, work.as_ref());
                fits.extend(tried.map(|tried| tried.priced(name, device, variant, question)));
            }
        }
        in_order(&mut fits);
        let named = |engine: EngineSpec| format!("{}@{}", engine.engine.name(), engine.version_name());
        let unasked = |engine: &EngineSpec| {
            let has_row = fits.iter().any(|fit: &Fit| fit.engine.as_deref() == Some(&*named(*engine)));
            let refusal = || asked.predict(*engine).err().filter(|error| matches!(error, PlanError::Engine(_)));
            let why = || refusal().map_or("it can be told none of these layouts".to_owned(), |error| error.to_string());
            (!has_row).then(|| format!("{} has no row: {}", named(*engine), why()))
        };
        let unasked: Vec<String> = engines.asked.iter().filter_map(unasked).collect();
        let notes = asked.notes().into_iter().chain(unasked).collect();
        let mut answer = Answer { notes, ..asked.rows(question, fits)? };
        answer.fewer_bits = asked.in_fewer_bits(&layouts, answer.best(), question, engines);
        answer.curves =
            answer.best_of_each().into_iter().filter_map(|fit| self.curve(fit, question, engines)).collect();
        Ok(answer)
    }

    /// The row that [`fit_beside`](Self::fit_beside) has of the request's own layout on the one device of a question, by the rules of
    /// the engine that is asked and in the dtypes that the request states; `None` where that can be told no such layout.
    ///
    /// # Errors
    /// As [`fit`](Self::fit); what is looked for the request may state, since the question says it.
    pub fn fit_as_divided(&self, question: &FitQuestion, engines: Engines<'_>) -> Result<Option<Answer>, PlanError> {
        let parallel = self.budget()?.parallel;
        let unsought = self.changed(|budget| (budget.max_seq_len, budget.max_batch_size) = (None, None));
        let (asked, work) = unsought.asked_of(question)?;
        let ([(name, device)], [engine]) = (&*question.devices, engines.asked) else { return Ok(None) };
        let variant = Variant::plain(Some(*engine));
        let tried = asked.varied(variant, device, parallel, question, engines, work.as_ref());
        let row = tried.map(|tried| tried.priced(name, device, variant, question));
        row.map(|row| asked.rows(question, vec![row])).transpose()
    }

    /// The request for sequences of the question's length, and the work of its weights.
    fn asked_of(&self, question: &FitQuestion) -> Result<(Self, Option<Work>), PlanError> {
        if self.weights().is_none() && question.weights.is_none() {
            let why = self.model().model().and_then(|model| model.weights_unknown.as_ref());
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            return Err(PlanError::Budget(format!(
                "the size of the model's weights is unknown{why}, so what they leave for caches is too; state it with --weights"
            )));
        }
        let weights = question.weights.map(|stated| {
            self.weights_as(stated, None).ok_or_else(|| {
                PlanError::Budget(
                    "what weights of so many bits take is not known of this model; state a size with --weights".into(),
                )
            })
        });
        let weights = weights.transpose()?;
        // What the passes refuse, or no cache takes, is no layout that does not fit.
        self.settled()?;
        let asked = self.changed(|budget| budget.max_seq_len = Some(question.context));
        Ok((asked, self.with_weights(weights).work()))
    }

    /// Rows of a question, with nothing else that is said of them.
    fn rows(&self, question: &FitQuestion, fits: Vec<Fit>) -> Result<Answer, PlanError> {
        let currency = (!question.prices.per_hour.is_empty()).then(|| question.prices.currency.clone());
        Ok(Answer {
            model: question.model.clone().unwrap_or_else(|| self.info().model_type.clone()),
            stated: question.stated.clone(),
            weights: question.weights.map(|stated| Weights::of(self, stated)),
            command: None,
            experts: self.model().has_experts(),
            dtypes: self.budget()?.dtypes,
            context: question.context,
            sequences: question.sequences,
            margin: question.margin,
            notes: Vec::new(),
            currency,
            fits,
            curves: Vec::new(),
            fewer_bits: Vec::new(),
            freed: None,
        })
    }

    /// The longest sequences of which some layout holds as many as are asked for, in the model's own dtypes and by the rules that are
    /// asked, up to what the model was made for; 0 where none holds them however short they are.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn longest_that_fits(&self, question: &FitQuestion, engines: Engines<'_>) -> Result<u64, PlanError> {
        self.refuse_sought()?;
        let layouts = self.layouts(question)?;
        let dtypes = self.budget()?.dtypes;
        let layouts =
            layouts.iter().flat_map(|(_, device, layouts)| layouts.iter().map(move |layout| (*device, *layout)));
        let tries: Vec<(&DeviceInfo, Parallel)> = layouts.collect();
        let holds = |context: u64| {
            let question = FitQuestion { context, ..question.clone() };
            let own = |(device, parallel)| {
                tried(self, device, parallel, &question, None).is_some_and(|tried| tried.sequences >= question.needed())
            };
            let told = |engine, (device, parallel): (&DeviceInfo, Parallel)| {
                let sequences = question.needed().next_multiple_of(parallel.dp.into());
                let plain = Variant::plain(Some(engine)).layout(self, parallel, dtypes, &question);
                let layout = Layout { sequences, ..plain };
                let asking = Asking { model: self, engines, engine, device, question: &question, work: None };
                let found = asking.of(layout);
                found.is_some_and(|found| found.sequences > 0 && asking.between(&layout)[0] >= question.needed())
            };
            let asked = || engines.asked.iter().any(|engine| tries.iter().any(|layout| told(*engine, *layout)));
            engines.own && tries.iter().any(|layout| own(*layout)) || asked()
        };
        Ok(last(self.most_tokens(), |context| context == 0 || holds(context)))
    }

    /// What a layout admits in some dtypes, or by an engine that is told it.
    fn varied(
        &self,
        variant: Variant,
        device: &DeviceInfo,
        parallel: Parallel,
        question: &FitQuestion,
        engines: Engines<'_>,
        work: Option<&Work>,
    ) -> Option<Tried> {
        let Some(engine) = variant.engine else {
            return tried(&variant.of(self), device, parallel, question, work);
        };
        let layout = variant.layout(self, parallel, self.budget().ok()?.dtypes, question);
        let asking = Asking { model: self, engines, engine, device, question, work };
        let own = tried(&variant.of(self), device, parallel, question, None).map_or(0, |own| own.sequences);
        let tried = asking.most(layout, own)?;
        let between = |sequences: u64| asking.between(&Layout { sequences, ..layout });
        let own = if tried.sequences > 0 { between(tried.sequences) } else { [0; 2] };
        // Fewer than are needed, of bytes that are not known exactly, may be as many.
        let is_short = 0 < tried.sequences && tried.sequences < question.needed();
        let needed = is_short.then(|| between(question.needed())).filter(|[_, most]| *most >= question.needed());
        Some(tried.between(needed.unwrap_or(own)))
    }

    /// Refuses a budget that states what is looked for. What a command states of it each layout tells that anew.
    fn refuse_sought(&self) -> Result<(), PlanError> {
        let Config { budget, .. } = self.config();
        let stated = [
            ("memory.bytes", budget.memory.as_ref().is_some_and(|memory| memory.bytes.is_some())),
            ("engine.cache_bytes", budget.engine.cache_bytes.is_some()),
            ("max_batch_size", budget.max_batch_size.is_some()),
            ("max_seq_len", budget.max_seq_len.is_some()),
        ];
        match stated.into_iter().find(|(_, stated)| *stated) {
            Some((key, _)) if self.stated() != Stated::Command => {
                Err(PlanError::Sought { key, origin: self.config().origin_of(key).cloned() })
            }
            _ => Ok(()),
        }
    }

    fn as_run_by(&self, engine: Option<EngineSpec>) -> Self {
        engine.into_iter().fold(self.clone(), Self::for_engine)
    }

    /// How the model can be divided over each of the devices.
    fn layouts<'a>(&self, question: &'a FitQuestion) -> Result<Vec<OnDevice<'a>>, PlanError> {
        let Some(divisible) = self.model().divisible() else {
            let unread = "how a model of which only the caches are known can be divided is unknown";
            return Err(PlanError::Budget(unread.into()));
        };
        let divided = self.budget()?.parallel;
        let of_device = |(name, device): &'a (String, DeviceInfo)| {
            // No engine divides a model over memory that processors share.
            let most = if device.kind == DeviceKind::Integrated { 1 } else { question.max_devices };
            (name.as_str(), device, divisible.layouts(most, divided, |tp| self.divides_over(tp)))
        };
        Ok(question.devices.iter().map(of_device).collect())
    }

    fn with_weights(&self, weights: Option<ByteSize>) -> Self {
        self.changed(|budget| {
            let memory = budget.memory.get_or_insert_default();
            memory.weights = weights.or(memory.weights);
        })
    }

    /// What the layout of `fit` holds at other lengths, by the rules of its row and in the model's own dtypes.
    fn curve(&self, fit: &Fit, question: &FitQuestion, engines: Engines<'_>) -> Option<Curve> {
        let (name, device) =
            question.devices.iter().find(|(name, _)| *name == fit.device && fit.changed_dtypes() == 0)?;
        let engine = fit.engine.as_deref().map(str::parse).transpose().ok()?;
        let variant = Variant::plain(engine);
        let points = CURVE.filter_map(|power| {
            let question = FitQuestion { context: 1 << power, ..question.clone() };
            let tried = self.varied(variant, device, fit.parallel, &question, engines, None)?;
            Some((question.context, tried.sequences))
        });
        let layout = fit.flags().replace("--", "");
        let name = format!("{} x {name} {layout}", fit.devices).trim_end().to_owned();
        Some(Curve { name, points: points.collect() })
    }
}
