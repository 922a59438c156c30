//! Which devices hold a model, where each engine is asked as a command of its own asks it: with that version's defaults on the device.

use cacheplan_planner::engines::Layout;
use cacheplan_planner::fit::{Answer, AskedOf, Engines, Told};
use cacheplan_planner::{DeviceInfo, Engine, EngineSpec, FitQuestion, Override, PlanRequest, Prices};

use crate::answer::Starts;
use crate::error::ServeError;
use crate::found::{asked_of, outcome};
use crate::launch::Launch;
use crate::question::{Models, Options};

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
    /// Every engine by the shortest command that serves the model.
    pub fn of_model(model: &PlanRequest, name: Option<&str>) -> Self {
        let models = Models { model: model.model().clone(), draft: None };
        let options = Options { model_is_given: true, ..Options::default() };
        Self { models, name: name.unwrap_or("MODEL").to_owned(), options, given: None }
    }

    /// The engine of a command by that, every other one by the shortest command that serves its model.
    pub fn of_command(engine: EngineSpec, launch: Launch, models: Models, options: Options, name: String) -> Self {
        Self { models, name, options, given: Some((engine, launch)) }
    }

    /// Plans every layout of each question's devices, and what each of the engines admits of it that is told so; `None` of no
    /// question.
    ///
    /// # Errors
    /// As [`PlanRequest::fit`], and what an engine refuses that can serve the model in no layout.
    pub fn fit(
        &self,
        questions: &[(&PlanRequest, FitQuestion)],
        engines: &[EngineSpec],
    ) -> Result<Option<Answer>, ServeError> {
        let answered = |(request, question): &(&PlanRequest, FitQuestion)| {
            let admitted = |told: Told<'_>| self.of_layout(told).ok()?;
            let between = |told: Told<'_>| self.between(told).unwrap_or([0; 2]);
            request.fit_beside(question, Engines { asked: engines, asks: &admitted, between: &between })
        };
        let answers: Result<Vec<Answer>, _> = questions.iter().map(answered).collect();
        let Some(answer) = Answer::joined(answers?) else { return Ok(None) };
        for engine in engines {
            let name = format!("{}@{}", engine.engine.name(), engine.version_name());
            if answer.fits.iter().any(|fit| fit.engine.as_ref() == Some(&name)) {
                continue;
            }
            for (_, question) in questions {
                let alone = Layout::alone(question.context, question.sequences, answer.dtypes);
                for (_, device) in &question.devices {
                    let told = Told { engine: *engine, device, layout: &alone, weights: question.weights };
                    if let Some(asked) = self.of_layout(told)? {
                        asked.request.predict(*engine)?;
                    }
                }
            }
        }
        Ok(Some(answer))
    }

    /// The longest sequences that fit, as [`PlanRequest::longest_that_fits`] finds them.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn longest_that_fits(
        &self,
        request: &PlanRequest,
        question: &FitQuestion,
        engines: &[EngineSpec],
    ) -> Result<u64, ServeError> {
        let admitted = |told: Told<'_>| self.of_layout(told).ok()?;
        let between = |told: Told<'_>| self.between(told).unwrap_or([0; 2]);
        Ok(request.longest_that_fits(question, Engines { asked: engines, asks: &admitted, between: &between })?)
    }

    /// The longest of so many sequences that each engine's own command holds on one such device, of those that hold any.
    pub fn longest_of_each(&self, request: &PlanRequest, device: &DeviceInfo, sequences: u64) -> Vec<(Engine, u64)> {
        let question = FitQuestion {
            model: None,
            stated: Vec::new(),
            context: 1,
            sequences,
            devices: vec![(device.name.clone(), device.clone())],
            max_devices: 1,
            margin: 0,
            weights: request.config().budget.memory.as_ref().and_then(|memory| memory.weights),
            prices: Prices::default(),
        };
        let longest = |engine: &Engine| {
            let found = self.longest_that_fits(request, &question, &[(*engine).into()]).ok()?;
            (found > 0).then_some((*engine, found))
        };
        Engine::all().iter().filter_map(longest).collect()
    }

    /// What an engine asks of each of such devices that is told a layout; none where it cannot be told it.
    fn of_layout(&self, told: Told<'_>) -> Result<Option<AskedOf>, ServeError> {
        let told = self.told(told)?;
        told.map(|(launch, options)| asked_of(&launch, &self.models, &options)).transpose()
    }

    /// Sequences of all replicas of a layout, at least and at most, as its command is answered; none where it is no command.
    fn between(&self, told: Told<'_>) -> Option<[u64; 2]> {
        let dp = told.layout.parallel.dp;
        let (launch, options) = self.told(told).ok()??;
        let answer = outcome(&launch, &self.models, &options).ok()?;
        let found = answer.sequences.filter(|_| answer.starts != Starts::No)?;
        let least = if answer.starts == Starts::Yes { found.low } else { 0 };
        Some([least, found.high].map(|of_replica| of_replica.saturating_mul(dp.into())))
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
        Ok(Some((Launch { gpus: None, ..told }, options)))
    }
}
