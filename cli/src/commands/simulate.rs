//! `cacheplan simulate`: what a prefix cache of a plan's sizes would do to a workload.

use std::io::BufReader;
use std::path::PathBuf;

use cacheplan::files::{Limit, Source};
use cacheplan::managers::simulate::{Policy, Report, Scenario, TraceRequest, Workload};
use cacheplan::planner::size::TokenCount;
use clap::ValueEnum;

use crate::commands::Format;
use crate::commands::load::read_plan;
use crate::failure::{Failure, in_file, note, print, print_json, write};
use crate::numbers::whole;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    requests: Requests,

    /// Plan (JSON) whose sizes are simulated: checkpoints and their format, KV tokens, tokens per block, host, sequences
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// Slots for checkpoints, instead of the plan's; `unlimited` for as many as it takes
    #[arg(long, value_name = "N", value_parser = limit)]
    checkpoints: Option<Most>,

    /// Tokens in the KV pool, instead of the plan's; `unlimited` for as many as it takes
    #[arg(long, value_name = "N", value_parser = limit)]
    kv_tokens: Option<Most>,

    /// Tokens per chunk of the model's scan
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole::<u32>(1..=u32::MAX.into()))]
    chunk: u32,

    /// Only this policy; may be repeated
    #[arg(long, value_enum, value_name = "POLICY")]
    policy: Vec<PolicyName>,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Also draw the hit rate over the requests
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Requests {
    /// Trace file, JSON lines: cacheplan's own or Mooncake's
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Built-in workload
    #[arg(long, value_enum)]
    workload: Option<WorkloadName>,
}

#[derive(Clone, Copy, ValueEnum)]
enum WorkloadName {
    /// Conversations, single questions and prompts sent again
    Chat,
    /// Long contexts that grow, retry and branch
    Agents,
    /// Documents behind a system prompt
    Rag,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum PolicyName {
    /// One running state per request: chunk ends and the finish
    NoBuffer,
    /// A second buffer: one aligned or branch position per forward
    DoubleBuffered,
    /// Every useful position, least recently used first
    CompleteLru,
    /// Every useful position, least coverage first
    Coverage,
}

/// A size, or none.
#[derive(Clone, Copy)]
struct Most(Option<usize>);

fn limit(text: &str) -> Result<Most, String> {
    match text {
        "unlimited" => Ok(Most(None)),
        _ => {
            let count = text.parse::<TokenCount>().ok().and_then(|TokenCount(count)| usize::try_from(count).ok());
            let bad = || "a number such as 64, 32k (of 1,024) or 1m, or `unlimited`, was expected".to_owned();
            count.map(|count| Most(Some(count))).ok_or_else(bad)
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let requests = args.requests.load()?;
    let scenario = args.scenario()?;
    let policies = if args.policy.is_empty() { PolicyName::value_variants() } else { &args.policy };
    let reports: Result<Vec<Report>, _> =
        policies.iter().map(|&policy| Scenario { policy: policy.into(), ..scenario }.run(&requests)).collect();
    let reports = reports.map_err(Failure::error)?;
    if let Some(path) = &args.svg {
        write(path, &Report::chart(&args.requests.title(), &reports))?;
    }
    if let Some(report) = reports.first().filter(|report| !report.reuse.is_on()) {
        note(&report.reuse.to_string());
    }
    match args.format {
        Format::Table => {
            let rows: Vec<String> = reports.iter().map(Report::row).collect();
            print(&format!("{}\n{}\n", Report::HEADER, rows.join("\n")))
        }
        Format::Json => print_json(&reports),
    }
}

impl Requests {
    pub(crate) fn load(&self) -> Result<Vec<TraceRequest>, Failure> {
        if let Some(path) = &self.trace {
            let source = Source::named(path, Limit::TRACE).map_err(Failure::error)?;
            source.within(Limit::TRACE).map_err(Failure::error)?;
            let requests =
                TraceRequest::read_trace(BufReader::new(source.reader())).map_err(|error| in_file(path, error))?;
            if requests.is_empty() {
                return Err(in_file(path, "the trace holds no request"));
            }
            return Ok(requests);
        }
        Ok(self.workload.map(Workload::from).map(Workload::requests).unwrap_or_default())
    }

    pub(crate) fn title(&self) -> String {
        match (&self.trace, self.workload.and_then(|name| name.to_possible_value())) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(name)) => name.get_name().to_owned(),
            (None, None) => String::new(),
        }
    }
}

impl Args {
    fn scenario(&self) -> Result<Scenario, Failure> {
        let chunk = self.chunk as usize;
        let mut scenario = match &self.plan {
            Some(path) => Scenario::of_plan(&read_plan(path)?, chunk).map_err(|error| in_file(path, error))?,
            None => Scenario { chunk, ..Scenario::default() },
        };
        if let Some(Most(checkpoints)) = self.checkpoints {
            scenario.checkpoints = checkpoints;
        }
        if let Some(Most(tokens)) = self.kv_tokens {
            scenario.kv_tokens = tokens;
        }
        Ok(scenario)
    }
}

impl From<WorkloadName> for Workload {
    fn from(name: WorkloadName) -> Self {
        match name {
            WorkloadName::Chat => Self::Chat,
            WorkloadName::Agents => Self::Agents,
            WorkloadName::Rag => Self::Rag,
        }
    }
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::NoBuffer => Self::NoBuffer,
            PolicyName::DoubleBuffered => Self::DoubleBuffered,
            PolicyName::CompleteLru => Self::CompleteLru,
            PolicyName::Coverage => Self::Coverage,
        }
    }
}
