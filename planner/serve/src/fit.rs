//! Which devices hold a model, where each engine is asked as its own command asks it: with that version's defaults on the device.

use cacheplan_planner::engines::Layout;
use cacheplan_planner::fit::{Answer, Engines};
use cacheplan_planner::{DeviceInfo, EngineSpec, FitQuestion, PlanRequest};

use crate::error::ServeError;
use crate::found::request;
use crate::launch::Launch;
use crate::question::{Models, Options};

/// Plans every layout of the model, and what each of the engines admits of it that is told so.
///
/// # Errors
/// As [`PlanRequest::fit`], and what an engine refuses that can serve it in no layout.
pub fn fit(model: &PlanRequest, question: &FitQuestion, engines: &[EngineSpec]) -> Result<Answer, ServeError> {
    let asks = Asks::of(model, question);
    let admitted = |engine, device: &DeviceInfo, layout: &Layout| asks.of_layout(engine, device, layout).ok()?;
    let answer = model.fit_beside(question, Engines { asked: engines, asks: &admitted })?;
    for engine in engines {
        let name = format!("{}@{}", engine.engine.name(), engine.version_name());
        if answer.fits.iter().any(|fit| fit.engine.as_ref() == Some(&name)) {
            continue;
        }
        for (_, device) in &question.devices {
            let alone = Layout::alone(question.context, question.sequences, answer.dtypes);
            if let Some(asked) = asks.of_layout(*engine, device, &alone)? {
                asked.predict(*engine)?;
            }
        }
    }
    Ok(answer)
}

/// The longest sequences that fit, as [`PlanRequest::longest_that_fits`] finds them.
///
/// # Errors
/// As [`fit`].
pub fn longest_that_fits(
    model: &PlanRequest,
    question: &FitQuestion,
    engines: &[EngineSpec],
) -> Result<u64, ServeError> {
    let asks = Asks::of(model, question);
    let asks = |engine, device: &DeviceInfo, layout: &Layout| asks.of_layout(engine, device, layout).ok()?;
    Ok(model.longest_that_fits(question, Engines { asked: engines, asks: &asks })?)
}

/// What a command asks of each of such devices that is told a layout; none where its engine cannot be told it.
///
/// # Errors
/// What the engine refuses.
pub fn asked_of_layout(
    launch: &Launch,
    models: &Models,
    options: &Options,
    device: &DeviceInfo,
    layout: &Layout,
) -> Result<Option<PlanRequest>, ServeError> {
    let Some(told) = launch.told(layout, options.version.as_deref())? else { return Ok(None) };
    let options = Options { devices: Some(device.clone().into()), ..options.clone() };
    // How many devices there are is what is sought.
    let (_, asked) = request(&Launch { gpus: None, ..told }, models, &options)?;
    Ok(Some(asked))
}

/// The version as a command is asked about; none of the newest, whose parser may be of a newer one yet.
pub fn version(engine: EngineSpec) -> Option<String> {
    (engine.version != engine.engine.newest()).then(|| engine.version_name())
}

/// What engines ask of a model that is named so.
struct Asks<'a> {
    models: Models,
    name: &'a str,
}

impl<'a> Asks<'a> {
    fn of(model: &PlanRequest, question: &'a FitQuestion) -> Self {
        let models = Models { model: model.model().clone(), draft: None };
        Self { models, name: question.model.as_deref().unwrap_or("MODEL") }
    }

    fn of_layout(
        &self,
        engine: EngineSpec,
        device: &DeviceInfo,
        layout: &Layout,
    ) -> Result<Option<PlanRequest>, ServeError> {
        let options = Options { version: version(engine), model_is_given: true, ..Options::default() };
        asked_of_layout(&Launch::serving(engine, self.name), &self.models, &options, device, layout)
    }
}

impl Launch {
    /// The shortest command by which an engine serves a model.
    pub fn serving(engine: EngineSpec, model: &str) -> Self {
        let words = engine.program().split_whitespace().chain([model]);
        Self { words: words.map(str::to_owned).collect(), ..Self::default() }
    }
}
