//! `cacheplan run`: plan, allocate, profile, resize and generate with a real model.

use std::path::{Path, PathBuf};

use cacheplan::candle::Device;
use cacheplan::runtime::{Request, RuntimeError, Session, SessionOptions, open_device};
use miette::{Report, miette};

use crate::commands::Format;
use crate::commands::load::Source;
use crate::failure::{Failure, print, write};
use crate::progress;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,

    /// Token ids of a prompt, separated by commas; give it again for another sequence of the batch
    #[arg(long, value_name = "IDS", required = true, value_parser = parse_ids)]
    prompt_ids: Vec<Prompt>,

    /// The most tokens to generate for each prompt
    #[arg(long, value_name = "N", default_value_t = 16)]
    max_new_tokens: usize,

    /// Go on behind a token that ends texts (`eos_token_id` of the model's configs)
    #[arg(long)]
    ignore_eos: bool,

    /// Write the logits that each token was chosen from, [steps, vocab], as safetensors; needs a single prompt
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,

    /// Write how full the pools were, for `cacheplan stats`
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Where to run and how to print it.
#[derive(clap::Args)]
pub(crate) struct OutputArgs {
    /// Where the model runs: cpu, or cuda:N in a build with the feature cuda
    #[arg(long, default_value = "cpu", value_parser = open_device)]
    pub(crate) device: Device,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

#[derive(Clone)]
struct Prompt(Vec<u32>);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.logits.is_some() && args.prompt_ids.len() != 1 {
        return Err(Failure::new(
            2,
            miette!("--logits needs a single --prompt-ids; {} are given", args.prompt_ids.len()),
        ));
    }
    args.source.reading.budget.refuse_engine_flags("nothing here is told to an engine")?;
    let options = SessionOptions {
        budget: args.source.budget()?,
        device: args.output.device.clone(),
        read: args.source.read_options()?,
        ignore_eos: args.ignore_eos,
        ..SessionOptions::default()
    };
    let session = progress::during("reading the model and its weights", || Session::open(&args.source.model, options));
    let requests: Vec<Request> = args
        .prompt_ids
        .iter()
        .map(|prompt| Request { prompt: prompt.0.clone(), max_new_tokens: args.max_new_tokens })
        .collect();
    let mut session = session.map_err(|error| match error {
        RuntimeError::Frontend(error) => args.source.reading.unread(&args.source.model, error),
        error => failure(error),
    })?;
    let served = serve(&mut session, &requests, args.output.format, args.logits.as_deref());
    if let Some(path) = &args.stats {
        let manager = session.caches().manager().map_err(Failure::error)?;
        let json = serde_json::to_string_pretty(&manager.book().stats()).map_err(Failure::error)?;
        write(path, &(json + "\n"))?;
    }
    served
}

/// Shows the plan, measures and resizes, generates, and ends with planned beside actual bytes.
pub(crate) fn serve(
    session: &mut Session,
    requests: &[Request],
    format: Format,
    logits: Option<&Path>,
) -> Result<(), Failure> {
    let say = |text: &str| if format == Format::Table { print(text) } else { Ok(()) };
    say(&format!("{}\n", session.plan().table()))?;

    let before = session.plan().capacity.clone();
    let measured = progress::during("measuring one forward", || session.profile()).map_err(failure)?;
    session.resize(&measured).map_err(failure)?;
    let after = &session.plan().capacity;
    say(&format!(
        "PROFILE   one forward of {} tokens needs {} bytes beyond the resident ones ({})\n\
         RESIZE    {} -> {} sequences, {} -> {} tokens in pages, capped by {}\n\n",
        measured.tokens,
        measured.forward_bytes,
        measured.method,
        before.sequences,
        after.sequences,
        tokens(before.tokens),
        tokens(after.tokens),
        after.capped_by,
    ))?;

    let generation =
        progress::during("generating", || session.generate(requests, logits.is_some())).map_err(failure)?;
    if let Some(path) = logits {
        generation.save_logits(path).map_err(failure)?;
    }
    let run = session.report(requests, &generation).map_err(failure)?;
    match format {
        Format::Json => {
            let json = serde_json::to_string_pretty(&run).map_err(Failure::error)?;
            print(&format!("{json}\n"))?;
        }
        Format::Table => {
            for (request, tokens) in run.requests.iter().zip(&run.tokens) {
                let cached = match request.cached_tokens {
                    0 => String::new(),
                    cached => format!(" ({cached} of them cached)"),
                };
                print(&format!("{} prompt tokens{cached} -> {tokens:?}\n", request.prompt_tokens))?;
            }
            if let Some(reason) = &run.no_reuse {
                print(&format!("REUSE     off: {reason}\n"))?;
            }
            print(&format!("\nPLANNED BESIDE ACTUAL\n{}", run.report))?;
        }
    }
    match run.report.pools.iter().find(|pool| pool.actual_bytes.is_some_and(|actual| actual != pool.planned_bytes)) {
        None => Ok(()),
        Some(pool) => Err(Failure::new(5, miette!("pool `{}` did not take the bytes that were planned", pool.id))),
    }
}

fn tokens(tokens: Option<u64>) -> String {
    tokens.map_or_else(|| "no".into(), |tokens| tokens.to_string())
}

/// A runtime error with the exit code that its cause has elsewhere.
pub(crate) fn failure(error: RuntimeError) -> Failure {
    Failure::new(error.exit_code(), Report::msg(error))
}

fn parse_ids(text: &str) -> Result<Prompt, String> {
    let ids = text.split(',').map(|id| id.trim().parse().map_err(|_| format!("`{id}` is not a token id")));
    ids.collect::<Result<_, _>>().map(Prompt)
}
