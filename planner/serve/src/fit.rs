//! Which devices hold a model, where each engine is asked as a command of its own asks it: with that version's defaults on the device.

use std::str::FromStr;

use cacheplan_planner::device::DeviceKind;
use cacheplan_planner::engines::llama_cpp::CELLS;
use cacheplan_planner::engines::{Layout, UnknownEngine};
use cacheplan_planner::fit::{Answer, AskedOf, Engines, Freed, Told};
use cacheplan_planner::{DeviceInfo, Engine, EngineSpec, FitQuestion, Override, PlanRequest, Prices, StatedWeights};

use crate::answer::Starts;
use crate::bisect::last;
use crate::error::ServeError;
use crate::found::{asked_of, outcome};
use crate::launch::Launch;
use crate::question::{Models, Options};
use crate::remedy::Remedy;
use crate::search::free;

/// The most rows of which more flags are tried.
const MOST_FREED: usize = 16;

/// Whose rules answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Those of an engine, asked by its own command.
    Engine(EngineSpec),
    /// The planner's, of whose pools no engine is.
    Plan,
}

impl From<EngineSpec> for By {
    fn from(engine: EngineSpec) -> Self {
        Self::Engine(engine)
    }
}

/// An engine's name, with `@VERSION` or without, or `plan`.
impl FromStr for By {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        if name == "plan" { Ok(Self::Plan) } else { name.parse().map(Self::Engine) }
    }
}

impl By {
    /// The engines among them.
    fn engines(by: &[Self]) -> Vec<EngineSpec> {
        let engine = |by: &Self| match by {
            Self::Engine(engine) => Some(*engine),
            Self::Plan => None,
        };
        by.iter().filter_map(engine).collect()
    }
}

/// The commands by which engines are asked about a model.
pub struct Asks {
    models: Models,
    /// As commands name the model.
    name: String,
    options: Options,
    /// The command that was given, and its engine.
    given: Option<(EngineSpec, Launch)>,
}

impl Asks {
    /// Every engine by the shortest command that serves the model, beside what is stated of its devices: what it says itself, such as
    /// its share of them, it refuses above that.
    pub fn of_model(model: &PlanRequest, name: Option<&str>) -> Self {
        let models = Models { model: model.model().clone(), draft: None };
        let settings = model.config().settings.iter();
        let stated = settings.filter(|set| set.origin.is_stated() && set.key.starts_with("memory."));
        let stated = stated.map(|set| Override {
            key: set.key.to_owned(),
            value: set.value.clone(),
            origin: set.origin.clone(),
        });
        let options = Options { model_is_given: true, overrides: stated.collect(), ..Options::default() };
        Self { models, name: name.unwrap_or("MODEL").to_owned(), options, given: None }
    }

    /// The engine of a command by that, every other one by the shortest command that serves its model.
    pub fn of_command(engine: EngineSpec, launch: Launch, models: Models, options: Options, name: String) -> Self {
        Self { models, name, options, given: Some((engine, launch)) }
    }

    /// Plans every layout of each question's devices by the rules that are asked, and where none are by those that are usual:
    /// each device's by the engine that serves the model there, or by the planner's where that can be told none; `None` of no
    /// question.
    ///
    /// # Errors
    /// As [`PlanRequest::fit`], and what an engine that is asked refuses which can serve the model in no layout.
    pub fn fit(&self, questions: &[(&PlanRequest, FitQuestion)], by: &[By]) -> Result<Option<Answer>, ServeError> {
        let mut answers = Vec::new();
        for (request, question) in questions {
            match by {
                [] => answers.extend(self.usual(request, question)?),
                by => answers.push(self.asked(request, question, by)?),
            }
        }
        let Some(mut answer) = Answer::joined(answers) else { return Ok(None) };
        for engine in By::engines(by) {
            let name = format!("{}@{}", engine.engine.name(), engine.version_name());
            if answer.fits.iter().all(|fit| fit.engine.as_ref() != Some(&name)) {
                questions.iter().try_for_each(|(request, question)| self.refused(engine, request, question))?;
            }
        }
        answer.freed = self.freed(&answer, questions);
        if answer.best().is_none() {
            let starts = |(request, question): &(&PlanRequest, FitQuestion)| self.starts_stated(request, question, by);
            answer.notes.extend(questions.iter().flat_map(starts));
        }
        Ok(Some(answer))
    }

    /// The cheapest row that is short of what was asked for and surely holds it once its engine is told flags that cost neither
    /// devices nor precision.
    fn freed(&self, answer: &Answer, questions: &[(&PlanRequest, FitQuestion)]) -> Option<Freed> {
        let needed = answer.needed();
        answer.nearly().into_iter().take(MOST_FREED).find_map(|fit| {
            let engine: EngineSpec = fit.engine.as_deref()?.parse().ok()?;
            let (request, question, device) = questions.iter().find_map(|(request, question)| {
                let (_, device) = question.devices.iter().find(|(name, _)| *name == fit.device)?;
                Some((request, question, device))
            })?;
            let replicas = u64::from(fit.parallel.dp);
            let sequences = needed.next_multiple_of(replicas);
            let layout = Layout { sequences, ..answer.layout_of(fit, engine) };
            let stated = question.weights.filter(|_| !layout.quantizes);
            let weights = stated.and_then(|stated| request.weights_as(stated, Some(engine.engine)));
            let (launch, options) = self.told(Told { engine, device, layout: &layout, weights }).ok()??;
            free(engine.engine).into_iter().find_map(|(remedies, reuses_prefixes)| {
                let launch = launch.changed(&remedies, options.version.as_deref())?;
                let found = outcome(&launch, &self.models, &options).ok()?;
                let between = found.sequences?;
                let between = [between.low, between.high].map(|of| of.saturating_mul(replicas));
                let flags = remedies.iter().map(Remedy::written).collect();
                let holds = found.starts == Starts::Yes && between[0] >= needed;
                holds.then(|| Freed::of(fit, between, flags, reuses_prefixes, launch.shown()))
            })
        })
    }

    fn asked(&self, request: &PlanRequest, question: &FitQuestion, by: &[By]) -> Result<Answer, ServeError> {
        let admitted = |told: Told<'_>| self.of_layout(told).ok()?;
        let between = |told: Told<'_>| self.between(told).unwrap_or([0; 2]);
        let (asked, own) = (By::engines(by), by.contains(&By::Plan));
        Ok(request.fit_beside(question, Engines { asked: &asked, own, asks: &admitted, between: &between })?)
    }

    /// The same by the rules that are usual on each device.
    fn usual(&self, request: &PlanRequest, question: &FitQuestion) -> Result<Vec<Answer>, ServeError> {
        let mut answers = Vec::new();
        for (engine, question) in self.by_engines(question) {
            let mut answer = self.asked(request, &question, &[By::Engine(engine)])?;
            if answer.fits.is_empty() {
                let why = self.refused(engine, request, &question).err().map(|error| format!(": {error}"));
                answer = self.asked(request, &question, &[By::Plan])?;
                let said = format!(
                    "{} cannot be asked{}; rows are of the planner's own pools",
                    engine.engine,
                    why.unwrap_or_default()
                );
                answer.notes.push(said);
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    /// The engine that serves the model on such a device where nobody names one: llama.cpp weights of a GGUF file, and where
    /// processors share memory.
    pub fn usual_engine(&self, device: &DeviceInfo, weights: Option<StatedWeights>) -> &'static str {
        let is_file = self.name.to_lowercase().ends_with(".gguf") || matches!(weights, Some(StatedWeights::Gguf(_)));
        if is_file || device.kind == DeviceKind::Integrated { "llama.cpp" } else { "vllm" }
    }

    /// The devices of a question by the engine that serves a model there.
    fn by_engines(&self, question: &FitQuestion) -> Vec<(EngineSpec, FitQuestion)> {
        let of = |name: &str| {
            let serves = |(_, device): &&(String, DeviceInfo)| self.usual_engine(device, question.weights) == name;
            let devices: Vec<(String, DeviceInfo)> = question.devices.iter().filter(serves).cloned().collect();
            let engine = Engine::all().iter().find(|engine| engine.name() == name && !devices.is_empty())?;
            Some((EngineSpec::from(*engine), FitQuestion { devices, ..question.clone() }))
        };
        ["vllm", "llama.cpp"].into_iter().filter_map(of).collect()
    }

    /// The row of one engine that [`fit`](Self::fit) has of the request's own layout; `None` where it can be told no such layout.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn as_divided(
        &self,
        request: &PlanRequest,
        question: &FitQuestion,
        engine: EngineSpec,
    ) -> Result<Option<Answer>, ServeError> {
        let admitted = |told: Told<'_>| self.of_layout(told).ok()?;
        let between = |told: Told<'_>| self.between(told).unwrap_or([0; 2]);
        let engines = Engines { asked: &[engine], own: false, asks: &admitted, between: &between };
        let found = request.fit_as_divided(question, engines)?;
        if found.is_none() {
            self.refused(engine, request, question)?;
        }
        Ok(found)
    }

    /// Why an engine can serve the model in no layout: what it says of the request's own.
    fn refused(&self, engine: EngineSpec, request: &PlanRequest, question: &FitQuestion) -> Result<(), ServeError> {
        let dtypes = request.config().budget.dtypes;
        let alone = Layout::alone(question.context, question.sequences, dtypes);
        let own = Layout { parallel: request.config().budget.parallel, ..alone };
        let weights = match question.weights {
            Some(StatedWeights::Bytes(size)) => Some(size),
            _ => None,
        };
        for (_, device) in &question.devices {
            if let Some(asked) = self.of_layout(Told { engine, device, layout: &own, weights })? {
                asked.request.predict(engine)?;
            }
        }
        Ok(())
    }

    /// The longest sequences that fit, as [`PlanRequest::longest_that_fits`] finds them by the same rules.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn longest_that_fits(
        &self,
        request: &PlanRequest,
        question: &FitQuestion,
        by: &[By],
    ) -> Result<u64, ServeError> {
        let admitted = |told: Told<'_>| self.of_layout(told).ok()?;
        let between = |told: Told<'_>| self.between(told).unwrap_or([0; 2]);
        let longest = |question: &FitQuestion, by: &[By]| {
            let (asked, own) = (By::engines(by), by.contains(&By::Plan));
            request.longest_that_fits(question, Engines { asked: &asked, own, asks: &admitted, between: &between })
        };
        if !by.is_empty() {
            return Ok(longest(question, by)?);
        }
        let found =
            self.by_engines(question).into_iter().map(|(engine, question)| longest(&question, &[By::Engine(engine)]));
        Ok(found.into_iter().try_fold(0, |most, found| found.map(|found| found.max(most)))?)
    }

    /// The longest of so many sequences that each engine's own command holds on one such device, of those that hold any.
    pub fn longest_of_each(
        &self,
        request: &PlanRequest,
        device: &DeviceInfo,
        sequences: u64,
        engines: &[EngineSpec],
    ) -> Vec<(EngineSpec, u64)> {
        // What is looked for nobody states.
        let request = request.changed(|budget| (budget.max_seq_len, budget.max_batch_size) = (None, None));
        let question = FitQuestion {
            model: None,
            stated: Vec::new(),
            context: 1,
            sequences,
            devices: vec![(device.name.clone(), device.clone())],
            max_devices: 1,
            margin: 0,
            weights: request.config().budget.memory.as_ref().and_then(|memory| memory.weights).map(Into::into),
            prices: Prices::default(),
        };
        let longest = |engine: &EngineSpec| {
            let found = self.longest_that_fits(&request, &question, &[By::Engine(*engine)]).ok()?;
            (found > 0).then_some((*engine, found))
        };
        engines.iter().filter_map(longest).collect()
    }

    /// The longest of so many sequences with which llama.cpp starts that is told its cells and layers, and then leaves nothing free;
    /// none of other engines, and where there are none.
    pub fn longest_stated(
        &self,
        request: &PlanRequest,
        device: &DeviceInfo,
        sequences: u64,
        stated: Option<StatedWeights>,
        engine: EngineSpec,
    ) -> Option<u64> {
        if engine.engine.ranks_flag().is_some() {
            return None;
        }
        let weights = stated.and_then(|stated| request.weights_as(stated, Some(engine.engine)));
        let dtypes = request.config().budget.dtypes;
        let starts = |steps: u64| {
            let layout = Layout::alone(steps * CELLS, sequences, dtypes);
            let (launch, options) = self.told(Told { engine, device, layout: &layout, weights }).ok()??;
            let all = [Remedy::Set("--n-gpu-layers", "99".to_owned())];
            let launch = launch.changed(&all, options.version.as_deref())?;
            Some(outcome(&launch, &self.models, &options).ok()?.starts == Starts::Yes)
        };
        let most = request.most_tokens() / CELLS;
        let longest = last(most, |steps| starts(steps).unwrap_or(false)) * CELLS;
        Some(longest).filter(|longest| *longest > 0)
    }

    /// What the rules that are asked leave free beside the longest that they hold, and what is longer without that, in words.
    pub fn kept_free(&self, request: &PlanRequest, question: &FitQuestion, by: &[By]) -> Vec<String> {
        let of_engine = |engine: EngineSpec| match engine.engine.ranks_flag() {
            Some(_) => format!("{} holds it in its share of each device", engine.engine.name()),
            None => left_free(engine, self.longest_stated_of_any(request, question, engine), question.sequences),
        };
        let own = by.contains(&By::Plan).then(|| "the planner divides --memory-fraction of each device".to_owned());
        self.engines_of(question, by).into_iter().map(of_engine).chain(own).collect()
    }

    /// Of rules by which nothing holds what a question asks for: that what they leave free holds it where it is stated.
    fn starts_stated(&self, request: &PlanRequest, question: &FitQuestion, by: &[By]) -> Vec<String> {
        let engines = self.engines_of(question, by).into_iter().filter(|engine| engine.engine.ranks_flag().is_none());
        let said = engines.filter_map(|engine| {
            let longest = self.longest_stated_of_any(request, question, engine);
            let longest = longest.filter(|longest| *longest >= question.context)?;
            Some(left_free(engine, Some(longest), question.sequences))
        });
        said.collect()
    }

    /// The engines that are asked of a question's devices.
    fn engines_of(&self, question: &FitQuestion, by: &[By]) -> Vec<EngineSpec> {
        match by {
            [] => self.by_engines(question).into_iter().map(|(engine, _)| engine).collect(),
            by => By::engines(by),
        }
    }

    /// [`longest_stated`](Self::longest_stated) of the device that holds the most.
    fn longest_stated_of_any(&self, request: &PlanRequest, question: &FitQuestion, engine: EngineSpec) -> Option<u64> {
        let of_one = |(_, device): &(String, DeviceInfo)| {
            self.longest_stated(request, device, question.sequences, question.weights, engine)
        };
        question.devices.iter().filter_map(of_one).max()
    }

    /// What an engine asks of each of such devices that is told a layout; none where it cannot be told it.
    fn of_layout(&self, told: Told<'_>) -> Result<Option<AskedOf>, ServeError> {
        let told = self.told(told)?;
        told.map(|(launch, options)| asked_of(&launch, &self.models, &options)).transpose()
    }

    /// Sequences of all replicas of a layout, at least and at most, as its command is answered; none where it is no command.
    fn between(&self, told: Told<'_>) -> Option<[u64; 2]> {
        let dp = told.layout.parallel.dp;
        let [least, most] = self.of_replica(told)?;
        // An engine may not start that is told the most at once, where it would with fewer.
        let surely = |sequences: u64| {
            let fewer = Layout { sequences, ..*told.layout };
            self.of_replica(Told { layout: &fewer, ..told }).map_or(0, |[least, _]| least)
        };
        let least = match least {
            0 if surely(1) > 0 => surely(last(told.layout.sequences, |sequences| surely(sequences) > 0)),
            least => least,
        };
        Some([least, most].map(|of_replica| of_replica.saturating_mul(dp.into())))
    }

    /// The same of one replica.
    fn of_replica(&self, told: Told<'_>) -> Option<[u64; 2]> {
        let (launch, options) = self.told(told).ok()??;
        let answer = outcome(&launch, &self.models, &options).ok()?;
        let found = answer.sequences.filter(|_| answer.starts != Starts::No)?;
        Some([if answer.starts == Starts::Yes { found.low } else { 0 }, found.high])
    }

    /// The command of an engine that is told a layout of such devices, and what is said beside it.
    fn told(&self, told: Told<'_>) -> Result<Option<(Launch, Options)>, ServeError> {
        let Told { engine, device, layout, weights } = told;
        let given = self.given.as_ref().filter(|(own, _)| *own == engine);
        let (launch, version) = match given {
            Some((_, launch)) => (launch.clone(), self.options.version.clone()),
            None => (Launch::serving(engine, &self.name), Some(engine.version_name())),
        };
        let Some(told) = launch.told(layout, version.as_deref())? else { return Ok(None) };
        let mut options = Options { version, devices: Some(device.clone().into()), ..self.options.clone() };
        if let Some(size) = weights {
            options.overrides.retain(|stated| stated.key != "memory.weights");
            options.overrides.push(Override::by_flag("memory.weights", size.stated(), "--weights"));
        }
        // How many devices there are is what is sought.
        Ok(Some((Launch { gpus: None, nodes: None, group_gpus: None, ..told }, options)))
    }
}

/// What llama.cpp leaves free, and what is longer where its cells are stated.
fn left_free(engine: EngineSpec, longest: Option<u64>, sequences: u64) -> String {
    let stated = longest.map_or(String::new(), |longest| {
        let cells = longest.saturating_mul(sequences);
        format!("; stated, -ngl 99 -c {cells} starts on one device and holds {longest}")
    });
    let name = engine.engine.name();
    format!(
        "{name} leaves free what --fit-target says, 1 GiB of each device where nobody states it, beside --reserve{stated}"
    )
}
