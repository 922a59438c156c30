//! Where what came of a run goes: to the terminal, to a report, to a picture.

use std::path::{Path, PathBuf};

use cacheplan::runtime::{Admission, Generation, PoolReport, Replies, Reply, Request, RunReport, Session};
use cacheplan::text::TextStream;

use super::interrupt::Interrupt;
use super::{Args, failure, fit};
use crate::commands::Format;
use crate::failure::{DRIFT, Failure, json, note, print, print_json, print_now, write};

/// What is written besides the outputs.
#[derive(clap::Args, Default)]
pub(crate) struct ResultArgs {
    /// Report planned beside actual, speed and pools as json or markdown, to FILE or to stdout
    #[arg(long, num_args = 1..=2, value_names = ["FORMAT", "FILE"])]
    report: Option<Vec<String>>,

    /// Draw how full the pools were over time, as SVG
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
}

impl ResultArgs {
    /// That a report has a format that is known, and stdout to itself, before there is anything to report.
    pub(super) fn check(&self, format: Format) -> Result<(), Failure> {
        match self.report.as_deref() {
            Some([format, ..]) if !matches!(format.as_str(), "json" | "markdown") => {
                Err(Failure::new(2, format!("--report is `{format}`; known is json and markdown")))
            }
            Some([_, file @ ..]) if format == Format::Json && file.first().is_none_or(|file| file == "-") => {
                let said = "--report and --format json both print to stdout; name a file behind the report's format";
                Err(Failure::new(2, said))
            }
            _ => Ok(()),
        }
    }

    /// The files that are written.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let report = self.report.as_deref().and_then(|report| report.get(1)).map(Path::new);
        report.into_iter().chain(self.timeline.as_deref())
    }

    pub(super) fn write(&self, run: &RunReport, generation: &Generation) -> Result<(), Failure> {
        if let Some([format, file @ ..]) = self.report.as_deref() {
            let text = if format == "json" { json(run)? } else { run.markdown() };
            match file.first() {
                Some(file) => write(file.as_ref(), &text)?,
                None => print(&text)?,
            }
        }
        match &self.timeline {
            Some(path) => write(path, &generation.timeline.svg()),
            None => Ok(()),
        }
    }
}

/// That every pool took what was planned, and every request could be served.
pub(super) fn held(run: &RunReport) -> Result<(), Failure> {
    let other = |pool: &&PoolReport| pool.actual_bytes.is_some_and(|actual| actual != pool.planned_bytes);
    if let Some(pool) = run.report.pools.iter().find(other) {
        return Err(Failure::new(DRIFT, format!("pool `{}` did not take the bytes that were planned", pool.id)));
    }
    let failed: Vec<&str> = run.requests.iter().filter_map(|request| request.error.as_deref()).collect();
    match failed.as_slice() {
        [] => Ok(()),
        [error] => Err(Failure::new(1, error)),
        [error, ..] => Err(Failure::new(1, format!("{} requests failed, the first: {error}", failed.len()))),
    }
}

/// What came of guesses, where there were any.
pub(super) fn guessed(run: &RunReport) -> Option<String> {
    let speed = &run.speed;
    let each = speed.tokens_per_verification?;
    let (drafted, accepted) = (speed.drafted_tokens, speed.accepted_tokens);
    let chain = speed.chain_drafted_tokens.zip(speed.chain_accepted_tokens);
    let chain = chain.map_or_else(String::new, |(drafted, accepted)| {
        format!("; in chains at the same places {accepted} of {drafted} would have been")
    });
    Some(format!("{accepted} of {drafted} guesses accepted, {each:.2} tokens for each step that verified some{chain}"))
}

/// One line about a run, beside its text.
pub(super) fn tell(run: &RunReport) {
    let speed = &run.speed;
    let begun = run.requests.iter().filter(|request| request.begun);
    let prompt: usize = begun.map(|request| request.prompt_tokens).sum();
    let cached: usize = run.requests.iter().map(|request| request.cached_tokens).sum();
    note(&format!(
        "{prompt} prompt tokens ({cached} of them cached), {} generated in {:.2} s, {:.1} tokens/s{}",
        speed.generated_tokens,
        speed.seconds,
        speed.tokens_per_second,
        guessed(run).map_or_else(String::new, |guessed| format!("; {guessed}")),
    ));
}

/// Serves prompts and prints their texts: that of a single one while it comes.
pub(super) fn serve_text(
    session: &mut Session,
    args: &Args,
    requests: &[Request],
    streams: Vec<Option<TextStream<'_>>>,
) -> Result<(), Failure> {
    fit(session)?;
    let streaming = requests.len() == 1 && args.output.format == Format::Table;
    let interrupt = Interrupt::listen()?;
    let (generation, texts) = stream(session, requests, streams, &interrupt, args.logits.is_some(), streaming)?;
    if let Some(path) = args.logits.as_deref() {
        generation.save_logits(path).map_err(failure)?;
    }
    let run = session.report(requests, &generation).map_err(failure)?;
    let run = RunReport { texts: Some(texts), ..run };
    match (args.output.format, run.texts.as_deref()) {
        (Format::Json, _) => print_json(&run)?,
        (Format::Table, Some(texts)) if !streaming => {
            for (text, number) in texts.iter().zip(1..) {
                print(&format!("[{number}] {}\n", text.as_deref().unwrap_or_default()))?;
            }
        }
        _ => print("\n")?,
    }
    tell(&run);
    args.results.write(&run, &generation)?;
    held(&run)
}

/// Serves requests, and prints text as it comes where it is one that is followed.
pub(super) fn stream(
    session: &mut Session,
    requests: &[Request],
    streams: Vec<Option<TextStream<'_>>>,
    interrupt: &Interrupt,
    keep_logits: bool,
    streaming: bool,
) -> Result<(Generation, Vec<Option<String>>), Failure> {
    let mut printed = Ok(());
    let mut told = |_: usize, reply: Reply<'_>| {
        if let Reply::Piece(text) = reply
            && streaming
            && printed.is_ok()
        {
            printed = print_now(text);
        }
        printed.is_ok()
    };
    let eos = session.generation_config().eos.clone();
    let mut admission = interrupt.then(Admission::Abandoned);
    let mut replies = Replies::new(streams, &eos, &mut admission, &mut told);
    let generation = session.serve(requests, keep_logits, &mut replies).map_err(failure)?;
    let texts = replies.into_texts().map_err(Failure::error)?;
    printed?;
    Ok((generation, texts))
}
