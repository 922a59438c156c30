//! Reading a model and a budget: the first half of every subcommand.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cacheplan::files::{Limit, Source, SourceError};
use cacheplan::planner::engines::EnginePrediction;
use cacheplan::planner::{
    BudgetError, CachePlan, Config, DeviceInfo, Devices, EngineSpec, ForwardProfile, MeasuredLedger, ModelCaches,
    Override, PlanError, PlanRequest, Stated,
};
use cacheplan::runtime::SessionOptions;
use cacheplan::transforms::{Assumption, FrontendError, Model, ReadOptions};

use crate::commands::budget::BudgetArgs;
use crate::commands::hub;
use crate::excerpt::excerpt;
use crate::failure::{Failure, in_file, note, read};

/// What every subcommand that plans a model takes.
#[derive(clap::Args)]
pub(crate) struct ModelArgs {
    /// A folder with config.json, or a config.json, .safetensors, .gguf or .onnx file; `-` for a config.json piped in;
    /// org/name[@revision] or org/name/file.gguf for a model of the Hugging Face hub
    #[arg(value_parser = hub::model())]
    pub(crate) model: PathBuf,

    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// How a model is read, and the budget for it.
#[derive(clap::Args)]
pub(crate) struct Reading {
    #[command(flatten)]
    facts: Facts,

    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
}

/// What is stated of a model beside its files.
#[derive(clap::Args)]
pub(crate) struct Facts {
    /// A fact the files leave out: layer.7=full_attention, model_type=llama, head_dim=128
    #[arg(long, value_name = "KEY=VALUE", hide_short_help = true)]
    assume: Vec<Assumption>,

    /// Architecture description (TOML) that comes before the built-in ones
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    description: Vec<PathBuf>,
}

impl Facts {
    pub(crate) fn options(&self) -> Result<ReadOptions, Failure> {
        let descriptions =
            self.description.iter().map(|path| read(path, Limit::TOML)).collect::<Result<Vec<String>, Failure>>()?;
        Ok(ReadOptions { assume: self.assume.clone(), descriptions })
    }

    /// The same as words of a command, a flag and a value each.
    pub(crate) fn words(&self) -> Vec<String> {
        let assumed = self.assume.iter().map(|fact| ("--assume", fact.to_string()));
        let described = self.description.iter().map(|path| ("--description", path.display().to_string()));
        assumed.chain(described).flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// Why a model could not be read, with what would do.
    pub(crate) fn unread(&self, model: &Path, error: FrontendError) -> Failure {
        let FrontendError::Description { place, .. } = &error else { return unread(model, error) };
        let Some(file) = place.which.and_then(|which| self.description.get(which)) else {
            return unread(model, error);
        };
        // What was piped in is not there any more.
        let text = place.span.clone().zip(read(file, Limit::TOML).ok().filter(|_| file != Path::new("-")));
        let shown = text.map(|(span, text)| excerpt(&file.display().to_string(), &text, span));
        in_file(file, &error).at(shown.unwrap_or_default())
    }
}

/// What a plan is for besides its model and budget.
#[derive(clap::Args, Default)]
pub(crate) struct Target {
    #[command(flatten)]
    pub(crate) device: OnDevice,

    /// Draft model, whose caches and weights the same plan holds; needs --draft-tokens or [speculation]
    #[arg(long, value_name = "MODEL", value_parser = hub::model(), hide_short_help = true)]
    pub(crate) draft: Option<PathBuf>,

    /// What a profiled forward showed (JSON with resident_bytes, forward_bytes and free_bytes); replaces assumptions
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    measurement: Option<PathBuf>,

    /// What an engine logged (TOML, as `cacheplan calibrate` writes it); replaces assumptions line by line
    #[arg(long, value_name = "FILE", conflicts_with = "measurement", hide_short_help = true)]
    measured: Option<PathBuf>,
}

/// The device, of which only the memory is known.
#[derive(clap::Args, Default)]
pub(crate) struct OnDevice {
    /// Memory of the device the plan is for, such as 24GiB, or its name, such as h100 (8xh100 for eight);
    /// 0.9 of it is divided where the budget states no [memory], and 0.75 where processors share it
    #[arg(long, visible_alias = "device", value_name = "SIZE|DEVICE")]
    device_memory: Option<Devices>,
}

impl OnDevice {
    /// The budget for it.
    pub(crate) fn resolve(&self, budget: &BudgetArgs) -> Result<Config, Failure> {
        resolve(budget, self.device_memory.as_ref().map(Devices::device))
    }

    pub(crate) const fn devices(&self) -> Option<&Devices> {
        self.device_memory.as_ref()
    }

    /// What is taken for granted of it.
    pub(crate) fn notes(&self, config: &Config) -> Result<Vec<String>, Failure> {
        let notes = self.device_memory.as_ref().map(|devices| devices.notes(config, Stated::Flags));
        Ok(notes.transpose().map_err(refused)?.unwrap_or_default())
    }

    /// The same request on it.
    pub(crate) fn put(&self, request: PlanRequest) -> PlanRequest {
        self.device_memory.iter().cloned().fold(request, PlanRequest::with_devices)
    }
}

impl ModelArgs {
    /// The budget file under the environment's values and the flags', with where each value came from.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        self.reading.budget.refuse_finding()?;
        resolve(&self.reading.budget, None)
    }

    /// What the flags say about how to read the model.
    pub(crate) fn read_options(&self) -> Result<ReadOptions, Failure> {
        self.reading.options()
    }

    /// What a session is opened with: the budget with where each value came from, and how to read the model.
    pub(crate) fn session_options(&self) -> Result<SessionOptions, Failure> {
        let Config { budget, settings } = self.config()?;
        let settings: Vec<Override> = settings
            .into_iter()
            .map(|setting| Override { key: setting.key.to_owned(), value: setting.value, origin: setting.origin })
            .collect();
        if let Some(told) = settings.iter().find(|set| set.key.starts_with("engine.") && !set.is_default()) {
            let code = if told.stated_by().is_some() { 2 } else { 1 };
            let (origin, key) = (&told.origin, &told.key);
            return Err(Failure::new(
                code,
                format!("{origin}: `{key}` tells an engine something, and there is none here"),
            ));
        }
        Ok(SessionOptions { budget, settings, read: self.read_options()?, ..SessionOptions::default() })
    }

    /// Reads everything that the plan follows from, and says what is taken for granted.
    pub(crate) fn request(&self, target: &Target) -> Result<PlanRequest, Failure> {
        self.reading.request(&self.model, target, None)
    }
}

/// One of several places for a model: its devices, and the keys that hold there alone.
pub(crate) struct Place<'a> {
    /// What states the devices.
    pub(crate) flag: &'static str,
    /// What states the keys.
    pub(crate) keys_flag: &'static str,
    pub(crate) devices: &'a Devices,
    pub(crate) keys: &'a [Override],
}

impl ModelArgs {
    /// A request for each place, about a model that is read once.
    pub(crate) fn requests<const N: usize>(&self, places: [Place<'_>; N]) -> Result<[PlanRequest; N], Failure> {
        self.reading.budget.refuse_finding()?;
        let model = Arc::new(self.reading.open(&self.model)?);
        let mut asked = Vec::with_capacity(N);
        for Place { flag, keys_flag, devices, keys } in places {
            let device = OnDevice { device_memory: Some(devices.clone()) };
            let config = device.resolve(&self.reading.budget.with(keys))?;
            let request = device.put(PlanRequest::of(Arc::clone(&model)).with_config(config));
            request.caches().map_err(|error| refused_by(flag, error))?;
            // Its own flags stand above what is stated of all places.
            asked.push(request.stated_in(Stated::Place { devices: flag, keys: keys_flag }));
        }
        // There is one for each place.
        asked.try_into().map_err(|_| Failure::new(1, "a place is missing"))
    }
}

impl Target {
    pub(crate) fn is_stated(&self) -> bool {
        self.device.device_memory.is_some()
            || self.draft.is_some()
            || self.measurement.is_some()
            || self.measured.is_some()
    }
}

impl Target {
    /// Whether a profiled forward is stated.
    pub(crate) const fn measurement(&self) -> bool {
        self.measurement.is_some()
    }

    /// What an engine logged, read.
    pub(crate) fn measured(&self) -> Result<Option<MeasuredLedger>, Failure> {
        self.measured.as_deref().map(read_measured).transpose()
    }
}

impl Reading {
    pub(crate) fn is_stated(&self) -> bool {
        let budget = &self.budget;
        !self.facts.assume.is_empty()
            || !self.facts.description.is_empty()
            || budget.budget.is_some()
            || budget.finds_length()
            || !budget.overrides().is_empty()
            || budget.bits().is_some()
    }

    pub(crate) fn options(&self) -> Result<ReadOptions, Failure> {
        self.facts.options()
    }

    fn open(&self, model: &Path) -> Result<Model, Failure> {
        let options = self.options()?;
        open(model, &options, |error| self.unread(model, error))
    }

    pub(crate) fn unread(&self, model: &Path, error: FrontendError) -> Failure {
        self.facts.unread(model, error)
    }

    /// Reads everything that the plan follows from, and says what is taken for granted once nothing is wrong: before an error
    /// it would seem to have to do with that.
    pub(crate) fn request(
        &self,
        model: &Path,
        target: &Target,
        engine: Option<EngineSpec>,
    ) -> Result<PlanRequest, Failure> {
        self.request_of(|reading| reading.open(model), target, engine)
    }

    /// The same of a config that was piped in.
    pub(crate) fn request_piped(
        &self,
        piped: &Source,
        target: &Target,
        engine: Option<EngineSpec>,
    ) -> Result<PlanRequest, Failure> {
        let read = |reading: &Self| {
            let model = Model::read_source(piped, &[], &reading.options()?);
            model.map_err(|error| reading.unread(Path::new("-"), error))
        };
        self.request_of(read, target, engine)
    }

    fn request_of(
        &self,
        open_model: impl FnOnce(&Self) -> Result<Model, Failure>,
        target: &Target,
        engine: Option<EngineSpec>,
    ) -> Result<PlanRequest, Failure> {
        // What weights of so many bits take the model says; of all else a budget is wrong by itself.
        target.device.resolve(&self.budget.without_bits())?;
        let measurement = target.measurement.as_deref().map(read_measurement).transpose()?;
        let measured = target.measured()?;
        let model = ModelCaches::from(open_model(self)?);
        let budget = self.budget.weighed(&model, engine.map(|engine| engine.engine))?;
        let mut request = target.device.put(PlanRequest::of(model).with_config(target.device.resolve(&budget)?));
        if self.budget.budget.is_none() {
            request = request.stated_in(Stated::Flags);
        }
        // What is assumed of the model does not hold for its draft.
        if let Some(path) = &target.draft {
            request = request.with_draft(open(path, &ReadOptions::default(), |error| unread(path, error))?);
        }
        request = measurement.into_iter().fold(request, PlanRequest::with_profile);
        request = measured.into_iter().fold(request, PlanRequest::with_measured);
        // What an engine has beside its caches bounds the length too.
        request = engine.into_iter().fold(request, PlanRequest::for_engine);
        if self.budget.finds_length() {
            let longest = request.longest_sequence().map_err(refused)?;
            let share = request.budget().ok().and_then(|budget| budget.memory.as_ref()?.fraction).map(f64::from);
            let share = share.map_or(String::new(), |share| format!(" in {share} of the device (--memory-fraction)"));
            note(&format!("max_seq_len {longest} is {}{share}", request.longest_is(longest)));
            request = request.with_config(target.device.resolve(&budget.of_length(longest))?);
        }
        request.caches().map_err(refused)?;
        request.notes().iter().for_each(|said| note(said));
        Ok(request)
    }
}

/// A request that cannot be answered, as the command ends with it.
pub(crate) fn refused(error: PlanError) -> Failure {
    refused_by("--device-memory", error)
}

/// The same where `flag` names the devices.
fn refused_by(flag: &str, error: PlanError) -> Failure {
    match error {
        PlanError::Devices(message) => Failure::new(2, format!("{flag}: {message}")),
        error => Failure::new(error.exit_code(), error),
    }
}

/// Reads a model's description; `unread` says what would do where it cannot be read.
pub(crate) fn open(
    path: &Path,
    options: &ReadOptions,
    unread: impl FnOnce(FrontendError) -> Failure,
) -> Result<Model, Failure> {
    let read = if path == Path::new("-") {
        let piped = Source::stdin(Limit::CONFIG).map_err(FrontendError::from);
        piped.and_then(|piped| Model::read_source(&piped, &[], options))
    } else {
        hub::read(path, options).map_err(|error| meant(path, Failure::error(error)))?
    };
    read.map_err(unread)
}

pub(crate) fn unread(path: &Path, error: FrontendError) -> Failure {
    match error {
        FrontendError::Source(SourceError::Io { name, source }) if source.kind() == ErrorKind::NotFound => {
            let nothing = hub::advice(path)
                .unwrap_or_else(|| "there is no such file or folder; a model of the hub is named org/name".to_owned());
            if path.exists() { in_file(name.as_ref(), source) } else { meant(path, in_file(path, nothing)) }
        }
        error => Failure::new(if error.is_unsupported() { 4 } else { 1 }, error),
    }
}

/// The same with the model that was probably meant.
fn meant(path: &Path, failure: Failure) -> Failure {
    let near = hub::near(path).map(|near| format!("did you mean {near}?"));
    near.into_iter().fold(failure, |failure, near| failure.with_advice(&near))
}

/// The keys that variables of the environment state.
pub(crate) fn environment() -> Result<Vec<Override>, Failure> {
    // A name that is no text cannot be ours; a value that is none is no value of any key.
    let text_of = |value: OsString| value.to_string_lossy().into_owned();
    let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, text_of(value))));
    Config::environment(variables).map_err(|error| Failure::new(error.exit_code(), &error))
}

/// The budget file, where there is one, under the environment and the flags; histograms are read.
fn resolve(args: &BudgetArgs, device: Option<&DeviceInfo>) -> Result<Config, Failure> {
    args.refuse_bits()?;
    let path = args.budget.as_deref();
    let text = path.map(|path| read(path, Limit::TOML)).transpose()?.unwrap_or_default();
    let origin = path.map(|path| path.display().to_string()).unwrap_or_default();
    let failed = |error: BudgetError| {
        let failure = Failure::new(error.exit_code(), &error);
        match error.span {
            Some(span) => failure.at(excerpt(&origin, &text, span)),
            None => failure,
        }
    };
    let environment = environment()?;
    let file = path.map(|_| (text.as_str(), origin.as_str()));
    let mut config = Config::resolve_on(device, file, &environment, args.overrides()).map_err(failed)?;
    if let Some(workload) = &mut config.budget.workload {
        // Histograms stand beside the budget.
        let beside = path.and_then(Path::parent).unwrap_or(Path::new(""));
        let read = |file: &str| {
            let source = Source::open(&beside.join(file));
            source.and_then(|source| source.text(Limit::HISTOGRAM)).map_err(|error| error.to_string())
        };
        workload.load(read).map_err(|error| Failure::new(1, error))?;
    }
    Ok(config)
}

/// A plan as `plan --out` writes it.
pub(crate) fn read_plan(path: &Path) -> Result<CachePlan, Failure> {
    Ok(read_engine_plan(path)?.0)
}

/// The same with what an engine allocates, where one was named.
pub(crate) fn read_engine_plan(path: &Path) -> Result<(CachePlan, Option<EnginePrediction>), Failure> {
    let (text, origin) = (read(path, Limit::PLAN)?, path.display().to_string());
    let plan = CachePlan::from_json(&text, &origin);
    let both = plan.and_then(|plan| Ok((plan, EnginePrediction::from_plan_json(&text, &origin)?)));
    both.map_err(|error| Failure::new(error.exit_code(), error))
}

fn read_measurement(path: &Path) -> Result<ForwardProfile, Failure> {
    let keys = "JSON with resident_bytes, forward_bytes and free_bytes was expected";
    Limit::MEASURED
        .parse_json(read(path, Limit::MEASURED)?.as_bytes())
        .map_err(|error| in_file(path, format!("no measurement: {error}; {keys}")))
}

fn read_measured(path: &Path) -> Result<MeasuredLedger, Failure> {
    MeasuredLedger::from_toml(&read(path, Limit::TOML)?, &path.display().to_string()).map_err(Failure::error)
}
