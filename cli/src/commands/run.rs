//! `cacheplan run`: plan, allocate, profile, resize and generate with a real model.

mod ask;
mod beams;
mod chat;
mod input_form;
pub(crate) mod interrupt;
mod requests;
pub(crate) mod results;
pub(crate) mod template;

use std::path::{Path, PathBuf};

use cacheplan::graphs::GraphEngine;
use cacheplan::kernels::{Backend, Products};
use cacheplan::planner::Override;
use cacheplan::runtime::{Prompts, Request, RuntimeError, Session, SessionOptions, WeightError, is_graph};
use clap::ArgMatches;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::commands::Format;
use crate::commands::budget::stated_length;
use crate::commands::hub;
use crate::commands::load::ModelArgs;
use crate::failure::{Failure, json, note, print, print_json, refuse_places, write};
use crate::paint::print_table;
use crate::progress;
use crate::trace::TraceArgs;

use self::ask::{AskArgs, Asked};
use self::input_form::refuse_unconsumed;
use self::results::ResultArgs;

/// How rows are multiplied.
fn products() -> impl TypedValueParser<Value = Products> {
    PossibleValuesParser::new(["exact", "fast"]).map(|kind| match kind.as_str() {
        "fast" => Products::Fast,
        _ => Products::Exact,
    })
}

#[derive(clap::Args)]
// A prompt is what is asked here; how long prompts are in the budget has another name.
#[command(allow_negative_numbers = true, mut_arg("workload.prompt", |arg| arg.long("workload-prompt")), mut_arg("max_seq_len", stated_length))]
pub(crate) struct Args {
    #[command(flatten)]
    source: ModelArgs,

    #[command(flatten)]
    ask: AskArgs,

    /// A smaller model of the same vocabulary that guesses what comes next; needs --draft-tokens or [speculation]
    #[arg(long, value_name = "MODEL")]
    draft: Option<PathBuf>,

    /// Verify several continuations that were looked up, as a tree; needs --draft-tokens or [speculation]
    #[arg(long, conflicts_with = "draft")]
    draft_tree: bool,

    /// Go on behind a token that ends texts (`eos_token_id` of the model's configs)
    #[arg(long)]
    ignore_eos: bool,

    /// Multiply the blocks of a GGUF file with f32 inputs, or on the CPU with inputs rounded to 8 bits in groups of 32, where other batches and chunks may give other tokens
    #[arg(long, value_name = "KIND", default_value = "exact", value_parser = products())]
    products: Products,

    /// Compute every prompt whole, whatever earlier ones have left in the caches
    #[arg(long)]
    no_prefix_reuse: bool,

    /// Keep prefixes in files of this folder, unencrypted, and find those of earlier runs; needs --disk-bytes or [disk]
    #[arg(long, value_name = "DIR", conflicts_with = "no_prefix_reuse")]
    disk: Option<PathBuf>,

    /// A folder of graphs with fixed caches (.onnx) that compute in place of the model's layers
    #[arg(long = "static", value_name = "DIR")]
    static_graphs: Option<PathBuf>,

    /// Run exported graphs by ONNX Runtime, which is this library, in a build with the feature ort
    #[arg(long, value_name = "LIBRARY")]
    onnx_runtime: Option<PathBuf>,

    /// Write the logits that each token was chosen from, before penalties, [steps, vocab], as safetensors; needs a single prompt
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,

    /// Write how full the pools were, for `cacheplan stats`
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,

    #[command(flatten)]
    results: ResultArgs,

    #[command(flatten)]
    trace: TraceArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Where to run and how to print it.
#[derive(clap::Args)]
pub(crate) struct OutputArgs {
    /// Where the model runs: cpu, or cuda:N in a build with the feature cuda
    #[arg(long, default_value = "cpu", value_parser = Session::open_device)]
    pub(crate) device: Backend,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

impl Args {
    /// The files that are written.
    fn outputs(&self) -> impl Iterator<Item = &Path> {
        let files = [&self.logits, &self.stats, &self.ask.out].into_iter().flatten().map(PathBuf::as_path);
        files.chain(self.results.files()).chain(self.trace.file())
    }
}

pub(crate) fn run(args: &Args, matches: Option<&ArgMatches>) -> Result<(), Failure> {
    matches.map_or(Ok(()), refuse_unconsumed)?;
    if let (Some(_), Some(prompts)) = (&args.logits, args.ask.prompts().filter(|prompts| *prompts != 1)) {
        return Err(Failure::new(2, format!("--logits needs a single --prompt-ids; {prompts} are given")));
    }
    let has_graph = args.static_graphs.is_some() || is_graph(&args.source.model);
    if args.onnx_runtime.is_some() && !has_graph {
        return Err(Failure::new(2, "--onnx-runtime runs exported graphs: give one, or --static"));
    }
    args.results.check(args.output.format)?;
    if args.logits.as_deref() == Some(Path::new("-")) {
        return Err(Failure::new(2, "--logits are no text; name a file"));
    }
    args.trace.begin(args.outputs())?;
    // What was asked is read before the weights are.
    args.ask.check()?;
    let asked = args.ask.read()?;
    let options = SessionOptions {
        backend: args.output.device.clone(),
        ignore_eos: args.ignore_eos,
        draft: args.draft.clone(),
        draft_tree: args.draft_tree,
        products: args.products,
        reuse_prefixes: !args.no_prefix_reuse,
        disk: args.disk.clone(),
        static_graphs: args.static_graphs.clone(),
        longest: Some(args.ask.longest(&args.source.model, &asked)),
        graph_engine: args.onnx_runtime.clone().map_or_else(GraphEngine::default, GraphEngine::OnnxRuntime),
        ..args.source.session_options()?
    };
    if args.disk.is_none() && options.budget.disk.is_some() {
        return Err(Failure::new(
            2,
            "`disk.bytes` (--disk-bytes) is stated, and no folder for the files; name one with --disk",
        ));
    }
    let mut session = open(&args.source, options)?;
    let prompts = Prompts::of_model(&args.source.model, session.vocab_size());
    let prompts = prompts.within(session.plan().limits.max_seq_len);
    refuse_places(args.outputs())?;
    let lines = if let Asked::Lines(lines) = &asked { lines.as_slice() } else { &[] };
    args.ask.refuse_undrawn(&session.generation_config().sampling, lines)?;
    let served = match asked {
        Asked::Prompts(asked) if args.ask.beams.is_some() => beams::serve(&mut session, args, &prompts, &asked),
        Asked::Prompts(asked) => {
            let requests = args.ask.requests(&session, &prompts, &asked)?;
            match args.ask.streams(&prompts, &requests, &asked)? {
                Some(streams) => results::serve_text(&mut session, args, &requests, streams),
                None => serve(&mut session, &requests, args.output.format, args.logits.as_deref(), &args.results),
            }
        }
        Asked::Turns => chat::serve(&mut session, args, &prompts),
        Asked::Lines(lines) => requests::serve(&mut session, args, &prompts, &lines),
    };
    session.take_notes().iter().for_each(|said| note(said));
    if let Some(path) = &args.stats {
        let stats = session.stats().map_err(failure)?;
        write(path, &json(&stats)?)?;
    }
    served
}

/// Reads a model, which takes as long as it is large.
pub(crate) fn open(source: &ModelArgs, options: SessionOptions) -> Result<Session, Failure> {
    let (model, loading, settings) = (&source.model, options.loading.clone(), options.settings.clone());
    if model == Path::new("-") {
        return Err(Failure::new(2, "a config that is piped in has no weights; name the folder or file of a model"));
    }
    let read = move || loading.bytes();
    let opened = progress::during_bytes("reading the model and its weights", read, || Session::open(model, options));
    let mut session = opened.map_err(|error| match error {
        RuntimeError::Frontend(error) => source.reading.unread(model, error),
        // A flag that nothing consumes is wrong usage; of a file it is the file's fault.
        RuntimeError::Plan(error) if error.unconsumed().is_some_and(|key| is_flagged(&settings, key)) => {
            Failure::new(2, error)
        }
        error @ RuntimeError::Weights(WeightError::Rounded { .. }) => failure(error),
        RuntimeError::Weights(_) => {
            hub::advice_on_weights(model).iter().for_each(|advice| note(advice));
            failure(error)
        }
        error => failure(error),
    })?;
    session.take_notes().iter().for_each(|said| note(said));
    Ok(session)
}

/// Whether a flag set this key, or one of this section.
fn is_flagged(settings: &[Override], key: &str) -> bool {
    let of_key =
        |set: &&Override| set.key.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    settings.iter().filter(of_key).any(|set| set.stated_by().is_some())
}

/// Shows the plan, measures and resizes, generates, and ends with planned beside actual bytes.
pub(crate) fn serve(
    session: &mut Session,
    requests: &[Request],
    format: Format,
    logits: Option<&Path>,
    results: &ResultArgs,
) -> Result<(), Failure> {
    let say = |text: &str| if format == Format::Table { print_table(text) } else { Ok(()) };
    say(&format!("{}\n", session.plan().table()))?;

    say(&fit(session)?)?;
    let generation =
        progress::during("generating", || session.generate(requests, logits.is_some())).map_err(failure)?;
    if let Some(path) = logits {
        generation.save_logits(path).map_err(failure)?;
    }
    let run = session.report(requests, &generation).map_err(failure)?;
    match format {
        Format::Json => print_json(&run)?,
        Format::Table => {
            for (request, tokens) in run.requests.iter().zip(&run.tokens) {
                let cached = match request.cached_tokens {
                    0 => String::new(),
                    cached => format!(" ({cached} of them cached)"),
                };
                print(&format!("{} prompt tokens{cached} ->\n  {tokens:?}\n", request.prompt_tokens))?;
            }
            if let Some(guessed) = results::guessed(&run) {
                print_table(&format!("GUESSES   {guessed}\n"))?;
            }
            if let Some(reason) = &run.no_reuse {
                print_table(&format!("REUSE     off:\n  {reason}\n"))?;
            }
            print_table(&format!("\nPLANNED BESIDE ACTUAL\n{}", run.report))?;
        }
    }
    results.write(&run, &generation)?;
    results::held(&run)
}

/// Measures one forward and resizes the pools to suit; says what came of it.
fn fit(session: &mut Session) -> Result<String, Failure> {
    let before = session.plan().capacity.clone();
    let measured = match progress::during("measuring one forward", || session.profile()) {
        Err(error @ RuntimeError::Uncounted) => return Ok(format!("PROFILE   none: {error}\n\n")),
        measured => measured.map_err(failure)?,
    };
    session.resize(&measured).map_err(failure)?;
    let after = &session.plan().capacity;
    Ok(format!(
        "PROFILE   one forward of {} tokens takes {} bytes ({})\n\
         RESIZE    {} -> {} sequences, {} -> {} tokens in pages,\n          capped by {}\n\n",
        measured.tokens,
        measured.forward_bytes,
        measured.method,
        before.sequences,
        after.sequences,
        tokens(before.tokens),
        tokens(after.tokens),
        after.capped_by,
    ))
}

fn tokens(tokens: Option<u64>) -> String {
    tokens.map_or_else(|| "no".into(), |tokens| tokens.to_string())
}

/// A runtime error with the exit code that its cause has elsewhere.
pub(crate) fn failure(error: RuntimeError) -> Failure {
    Failure::new(error.exit_code(), error)
}
