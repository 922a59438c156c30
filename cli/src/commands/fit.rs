//! `cacheplan fit`: which devices, how many and divided how hold so many sequences of so many tokens.

use std::path::{Path, PathBuf};

use cacheplan::files::Limit;
use cacheplan::planner::fit::{Answer, Price};
use cacheplan::planner::size::{BadTokenCount, TokenCount};
use cacheplan::planner::{ByteSize, Config, DeviceInfo, FitQuestion, Override, PlanRequest, Prices, StatedWeights};
use cacheplan::transforms::ReadOptions;
use cacheplan_serve::ServeError;
use cacheplan_serve::fit::{Asks, By};
use clap::ValueEnum;

use crate::commands::hub;
use crate::commands::load::{Facts, OnDevice, environment, open, refused};
use crate::commands::start::{self, Beside, StartArgs};
use crate::failure::{Failure, in_file, note, print, print_json, read};
use crate::numbers::whole;
use crate::paint::print_table;
use crate::progress::during;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder with config.json, or a config.json, .safetensors or .gguf file; `-` for a config.json piped in;
    /// org/name[@revision] or org/name/file.gguf for a model of the Hugging Face hub; a script or manifest (.sh, .txt, .yaml) that
    /// starts an engine
    #[arg(value_parser = hub::model(), required_unless_present = "words")]
    model: Option<PathBuf>,

    /// Tokens of each sequence, prompt and output, such as 32k (32,768); auto: the longest of which any of the devices hold
    /// --sequences
    #[arg(long, visible_alias = "max-seq-len", aliases = ["ctx", "max-model-len"], value_name = "TOKENS|auto", value_parser = tokens)]
    context: Option<Context>,

    /// Sequences at once
    #[arg(long, aliases = ["users", "concurrency", "max-num-seqs"], value_name = "N", value_parser = whole::<u64>(1..=1 << 32))]
    sequences: Option<u64>,

    #[arg(long, aliases = ["gpu", "device", "devices"], value_name = "DEVICE", value_delimiter = ',', value_parser = device, help = devices())]
    gpus: Vec<(String, DeviceInfo)>,

    /// The most devices
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole::<u32>(1..=1024))]
    max_gpus: u32,

    /// Room for so many percent more sequences than are asked for, before a layout counts as holding them
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = whole::<u32>(0..=1000))]
    margin: u32,

    /// What an hour of one device costs, such as h100=2.49,l40s=0.86, or 'h100=$2.49'; stands above --prices
    #[arg(long, value_name = "DEVICE=PRICE", value_delimiter = ',', value_parser = Price::of_device)]
    price: Vec<(String, Price)>,

    /// The same as TOML: `currency = "USD"` and `[per_hour]` with a number for each device
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// Weights over all devices, where no file tells or others are meant: a size, or bits such as fp8, int4, Q4_K_M
    #[arg(long, value_name = "SIZE|BITS")]
    weights: Option<StatedWeights>,

    /// Bytes of each device left to others, such as a screen
    #[arg(long, value_name = "SIZE")]
    reserve: Option<ByteSize>,

    /// The element type of keys and values, such as bf16; where nobody says, 8 bits are tried too
    #[arg(long, aliases = ["kv", "kv-cache-dtype"], value_name = "DTYPE")]
    kv_dtype: Option<String>,

    /// The element type of recurrent states; where nobody says, 16 bits are tried too
    #[arg(long, value_name = "DTYPE")]
    ssm_dtype: Option<String>,

    /// Whose rules answer, such as vllm@0.33.0; plan: the planner's own pools [default: vllm, and llama.cpp of a GGUF file and where
    /// processors share memory]
    #[arg(long = "as", aliases = ["engine", "engines"], value_name = "ENGINE[@VERSION]|plan", value_delimiter = ',', value_parser = by)]
    by: Vec<By>,

    #[command(flatten)]
    start: StartArgs,

    #[command(flatten)]
    facts: Facts,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// The length of a sequence, as it is asked for.
#[derive(Clone, Copy)]
enum Context {
    Tokens(u64),
    /// The longest that fits.
    Auto,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The best layout of each device, at most 100 columns wide
    Table,
    /// Every layout that was tried
    Json,
    /// The same, one a line
    Csv,
    /// Capacity over context and a map of devices by layout, 1000 pixels wide
    Svg,
    /// One file with the same pictures and their numbers; works offline, and prints
    Html,
}

impl Args {
    /// The dtypes that are stated, which are not varied.
    fn dtypes(&self) -> Vec<Override> {
        let flags = [("dtypes.kv", "--kv-dtype", &self.kv_dtype), ("dtypes.ssm", "--ssm-dtype", &self.ssm_dtype)];
        let stated = |(key, flag, dtype): (&str, &'static str, &Option<String>)| {
            dtype.as_ref().map(|dtype| Override::by_flag(key, dtype.clone(), flag))
        };
        flags.into_iter().filter_map(stated).collect()
    }

    /// What is stated of the model and its devices, as words of `cacheplan plan`.
    fn stated(&self) -> Vec<String> {
        let flags = [("--kv-dtype", &self.kv_dtype), ("--ssm-dtype", &self.ssm_dtype)].into_iter();
        let dtypes =
            flags.flat_map(|(flag, dtype)| dtype.iter().flat_map(move |dtype| [flag.to_owned(), dtype.clone()]));
        self.facts.words().into_iter().chain(dtypes).chain(self.reserved()).collect()
    }

    fn reserved(&self) -> impl Iterator<Item = String> {
        self.reserve.into_iter().flat_map(|size| ["--reserve".to_owned(), size.stated()])
    }

    /// What is stated of every device.
    fn of_devices(&self) -> Option<Override> {
        self.reserve.map(|size| Override::by_flag("memory.reserve", size.stated(), "--reserve"))
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    args.start.refuse_beside(args.model.as_deref())?;
    let read_options = args.facts.options()?;
    let mut prices = match &args.prices {
        None => Prices::default(),
        Some(path) if !path.exists() => {
            let said = "no such file; it holds `currency = \"USD\"`, and below `[per_hour]` lines such as `h200 = 3.5`";
            return Err(Failure::new(2, format!("--prices {}: {said}", path.display())));
        }
        Some(path) => Prices::from_toml(&read(path, Limit::TOML)?).map_err(|error| in_file(path, error))?,
    };
    for (device, price) in &args.price {
        prices.state(device, price.clone()).map_err(|error| Failure::new(2, format!("--price: {error}")))?;
    }
    let is_tried = |device: &String| args.gpus.is_empty() || args.gpus.iter().any(|(tried, _)| tried == device);
    let others: Vec<&str> =
        args.price.iter().filter(|(device, _)| !is_tried(device)).map(|(device, _)| &**device).collect();
    if !others.is_empty() {
        note(&format!("{} is not tried, since --gpus names others: its price is not used", others.join(", ")));
    }
    let devices = match (args.gpus.is_empty(), prices.per_hour.is_empty()) {
        (false, _) => args.gpus.clone(),
        (true, true) => usual()?,
        // What nobody priced is no answer to what is cheapest.
        (true, false) => prices.per_hour.keys().map(|name| asked(name)).collect::<Result<_, _>>()?,
    };
    let question = FitQuestion {
        model: None,
        stated: args.stated(),
        context: 1,
        sequences: args.sequences.unwrap_or(1),
        devices,
        max_devices: args.max_gpus,
        margin: args.margin,
        weights: args.weights,
        prices,
    };
    let (question, answer) = match args.model.as_deref() {
        Some(path) if start::is_script(path) => of_command(args, Some(path), read_options, question)?,
        Some(path) => of_model(args, path, &read_options, question)?,
        None => of_command(args, None, read_options, question)?,
    };
    answer.notes.iter().for_each(|said| note(said));
    match args.format {
        Format::Table => print_table(&answer.table())?,
        Format::Json => print_json(&answer)?,
        Format::Csv => print(&answer.csv())?,
        Format::Svg => print(&answer.svg())?,
        Format::Html => print(&answer.html())?,
    }
    let FitQuestion { context, sequences, .. } = question;
    match answer.best() {
        Some(_) => Ok(()),
        None => {
            let holds = if answer.may_hold() { "surely holds" } else { "holds" };
            Err(Failure::new(3, format!("nothing tried {holds} {sequences} of {context} tokens")))
        }
    }
}

/// What devices hold a model, as flags say it.
fn of_model(
    args: &Args,
    path: &Path,
    read: &ReadOptions,
    question: FitQuestion,
) -> Result<(FitQuestion, Answer), Failure> {
    args.start.refuse_alone()?;
    let (Some(context), Some(_)) = (args.context, args.sequences) else {
        let needed = "--context and --sequences are needed: so many sequences of so many tokens, such as --context 32k --sequences 10";
        return Err(Failure::new(2, needed));
    };
    let stated = stated(args, &question.devices)?;
    let request = PlanRequest::of(open(path, read, |error| args.facts.unread(path, error))?).with_config(stated);
    let mut question = FitQuestion { model: Some(path.to_string_lossy().into_owned()), ..question };
    let asks = Asks::of_model(&request, question.model.as_deref());
    question.context = match context {
        Context::Tokens(tokens) => tokens,
        Context::Auto => {
            let kept = || asks.kept_free(&request, &question, &args.by);
            longest(args, &request, || asks.longest_that_fits(&request, &question, &args.by), kept)?
        }
    };
    let answer = answered(&asks, &[(&request, question.clone())], &args.by)?;
    Ok((question, answer))
}

/// What the environment and flags say of every device.
fn stated(args: &Args, devices: &[(String, DeviceInfo)]) -> Result<Config, Failure> {
    let device = devices.first().map(|(_, device)| device);
    let flags: Vec<Override> = args.dtypes().into_iter().chain(args.of_devices()).collect();
    let stated = Config::resolve_on(device, None, &environment()?, &flags);
    let mut stated = stated.map_err(|wrong| Failure::new(wrong.exit_code(), &wrong))?;
    let by_somebody = |is: fn(&str) -> bool| stated.settings.iter().any(|set| set.origin.is_stated() && is(set.key));
    // Where nobody says anything of memory each device is planned as if alone.
    let is_stated = by_somebody(|key| key.starts_with("memory."));
    stated.budget.memory = stated.budget.memory.take().filter(|_| is_stated);
    Ok(stated)
}

fn answered(asks: &Asks, questions: &[(&PlanRequest, FitQuestion)], by: &[By]) -> Result<Answer, Failure> {
    let answer = during("planning layouts", || asks.fit(questions, by)).map_err(not_asked)?;
    answer.ok_or_else(|| Failure::new(2, "no device is named"))
}

/// What a plan or an engine refuses.
fn not_asked(error: ServeError) -> Failure {
    match error {
        ServeError::Plan(error) => refused(error),
        other => start::failed(other),
    }
}

/// The longest sequences that fit; where there are none, `fit` says why of one token.
fn longest(
    args: &Args,
    request: &PlanRequest,
    search: impl Fn() -> Result<u64, ServeError>,
    kept: impl Fn() -> Vec<String>,
) -> Result<u64, Failure> {
    let found = during("searching for the longest", search).map_err(not_asked)?;
    if found > 0 {
        let dtypes = if args.dtypes().is_empty() { "the model's own dtypes" } else { "the dtypes that are stated" };
        let limit = request.longest_is(found);
        let kept = kept().into_iter().map(|kept| format!("; {kept}")).collect::<String>();
        note(&format!("in {dtypes}, by the rules of the rows, context {found} is {limit}{kept}"));
    }
    Ok(found.max(1))
}

/// What devices hold what a command says, with all that it states; each has the engine's defaults for it.
fn of_command(
    args: &Args,
    file: Option<&Path>,
    read: ReadOptions,
    question: FitQuestion,
) -> Result<(FitQuestion, Answer), Failure> {
    let dtypes = Config::resolve(None, &[], &args.dtypes()).map_err(|wrong| Failure::new(wrong.exit_code(), &wrong))?;
    let dtypes = dtypes.budget.dtypes;
    let mut overrides = Vec::new();
    let size = match args.weights {
        Some(StatedWeights::Bytes(size)) => Some(size),
        _ => None,
    };
    overrides.extend(size.map(|size| Override::by_flag("memory.weights", size.stated(), "--weights")));
    overrides.extend(args.of_devices());
    let beside = Beside {
        strict: false,
        device: &OnDevice::default(),
        overrides: &overrides,
        bits: None,
        read,
        draft: None,
        measured: None,
    };
    let dtypes = [("--kv-dtype", dtypes.kv), ("--ssm-dtype", dtypes.ssm)];
    let tokens = args.context.and_then(|context| match context {
        Context::Tokens(tokens) => Some(tokens),
        Context::Auto => None,
    });
    let sizes = [("--context", tokens), ("--sequences", args.sequences)];
    let sought = args.start.sought(file, &beside, dtypes, sizes, &args.gpus, &question.devices)?;
    let by = if args.by.is_empty() { vec![By::Engine(sought.engine)] } else { args.by.clone() };
    let sequences = args.sequences.or(sought.sequences).unwrap_or(1);
    if let Some((.., request)) = sought.on.first() {
        let parallel = request.config().budget.parallel;
        // Experts that are divided over all ranks are so over more of them too.
        let of = |(key, size): (&'static str, u32)| match key {
            "ep" if size == parallel.tp * parallel.dp => "ep over all ranks".to_owned(),
            key => format!("{key} {size}"),
        };
        let kept: Vec<String> = parallel.sizes().into_iter().filter(|(_, size)| *size > 1).map(of).collect();
        if !kept.is_empty() {
            note(&format!("the command's {} is kept; leave it out there to have others tried", kept.join(", ")));
        }
    }
    // The command that is printed has the dtypes itself.
    let stated = [args.facts.words(), args.reserved().collect(), args.start.stated(&sought)].concat();
    let question = FitQuestion { model: Some(sought.name.clone()), stated, sequences, ..question };
    let asked = sought.on.iter().map(|(name, device, length, request)| {
        let devices = vec![(name.clone(), device.clone())];
        (request, FitQuestion { context: *length, devices, ..question.clone() })
    });
    let mut asked: Vec<(&PlanRequest, FitQuestion)> = asked.collect();
    let longest_of_any = || {
        let found = asked.iter().map(|(request, question)| sought.asks.longest_that_fits(request, question, &by));
        found.into_iter().try_fold(0, |most, found| Ok(found?.max(most)))
    };
    let stated = match args.context {
        None => None,
        Some(Context::Tokens(tokens)) => Some(tokens),
        Some(Context::Auto) => {
            let of = |(request, question): &(&PlanRequest, FitQuestion)| {
                longest(args, request, longest_of_any, || sought.asks.kept_free(request, question, &by))
            };
            asked.first().map(of).transpose()?
        }
    };
    for (_, question) in &mut asked {
        question.context = stated.unwrap_or(question.context);
    }
    let context = asked.last().map_or(question.context, |(_, question)| question.context);
    let mut answer = answered(&sought.asks, &asked, &by)?;
    if let Some(best) = answer.best() {
        let told = sought.launch.told(&answer.printed(best, sought.engine), args.start.version());
        answer.command = told.map_err(start::failed)?.map(|launch| launch.shown());
    }
    Ok((FitQuestion { context, ..question }, answer))
}

/// A device and the name it was asked for by, which is that of its price.
fn device(text: &str) -> Result<(String, DeviceInfo), String> {
    let device: DeviceInfo = text.parse().map_err(|error| match DeviceInfo::several(text) {
        Ok((count, device)) if count > 1 => {
            let one = DeviceInfo::names().find(|name| name.parse().as_ref() == Ok(&device));
            let one = one.unwrap_or_else(|| format!("{}B", device.total_bytes));
            format!("how many is what is sought; --gpus {one} --max-gpus {count} asks about up to so many")
        }
        _ => format!("{error}"),
    })?;
    Ok((text.trim().to_lowercase(), device))
}

/// Whose rules answer.
fn by(text: &str) -> Result<By, String> {
    text.parse().map_err(|error| format!("{error}; plan: the planner's own pools"))
}

/// A context of 32k is 32,768 tokens.
fn tokens(text: &str) -> Result<Context, String> {
    if text == "auto" {
        return Ok(Context::Auto);
    }
    let TokenCount(count) = text.parse().map_err(|error: BadTokenCount| error.to_string())?;
    let is_sane = (1..=1 << 32).contains(&count);
    if is_sane { Ok(Context::Tokens(count)) } else { Err(format!("{count} is not in 1..=4294967296")) }
}

/// Those that are tried where none are named.
fn usual() -> Result<Vec<(String, DeviceInfo)>, Failure> {
    FitQuestion::DEVICES.split(',').map(asked).collect()
}

fn asked(name: &str) -> Result<(String, DeviceInfo), Failure> {
    device(name).map_err(|error| Failure::new(2, error))
}

fn devices() -> String {
    format!(
        "Devices to choose among, such as l40s,h100 [default: that of the node that a manifest names, else those with a price, else {}]",
        FitQuestion::DEVICES.replace(',', ", ")
    )
}
