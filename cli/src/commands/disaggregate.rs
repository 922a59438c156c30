//! `cacheplan disaggregate`: prefill and decode on devices of their own, what passes between them, and what that admits.

use cacheplan::planner::budget::Lengths;
use cacheplan::planner::{BudgetKey, Devices, Disaggregation, EngineSpec, Override, PlanRequest};

use crate::commands::Format;
use crate::commands::load::{ModelArgs, Place};
use crate::failure::{Failure, note, print_json};
use crate::paint::print_table;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Devices that compute prompts, such as 2xh100
    #[arg(long, value_name = "SIZE|DEVICE")]
    prefill: Devices,

    /// Devices that write tokens, such as 4xh100
    #[arg(long, value_name = "SIZE|DEVICE")]
    decode: Devices,

    /// 10^9 bytes each second that a device sends or receives, one way: 50 for a network card of 400 Gb/s of its own
    #[arg(long, value_name = "GB/S", value_parser = link)]
    link: f64,

    /// A key of the budget where prompts are computed, such as tp=1 or dtypes.kv=fp8_e4m3; stands above those of both sides
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    on_prefill: Vec<(String, String)>,

    /// The same where tokens are written
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    on_decode: Vec<(String, String)>,

    /// Plan both sides with the dtypes and admission of an engine, such as vllm or sglang@0.5.23: one does not hand over to another
    #[arg(long = "as", value_name = "ENGINE[@VERSION]")]
    engine: Option<EngineSpec>,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// As JSON, which is `--format json`; the plans of both sides stand in it
    #[arg(long)]
    json: bool,
}

/// What carries nothing is no link.
fn link(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate * 1e9),
        _ => Err("a number of 10^9 bytes a second above 0 was expected".to_owned()),
    }
}

/// A key of the budget, by its path or its flag, and its value.
fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("KEY=VALUE was expected, such as tp=2")?;
    let is = |key: &&BudgetKey| key.path == name || key.flag.trim_start_matches('-') == name.trim_start_matches('-');
    let key = BudgetKey::all().iter().find(is).ok_or_else(|| {
        format!("there is no key `{name}`; `cacheplan config init` writes all of them, and their flags name them too")
    })?;
    Ok((key.path.to_owned(), value.to_owned()))
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let keys = |stated: &[(String, String)], flag: &str| {
        let keys = stated.iter().map(|(key, value)| Override::by_flag(key, value, format!("{flag} {key}={value}")));
        keys.collect::<Vec<_>>()
    };
    let [on_prefill, on_decode] = ["--on-prefill", "--on-decode"];
    let (first, second) = (keys(&args.on_prefill, on_prefill), keys(&args.on_decode, on_decode));
    let places = [
        Place { flag: "--prefill", keys_flag: on_prefill, devices: &args.prefill, keys: &first },
        Place { flag: "--decode", keys_flag: on_decode, devices: &args.decode, keys: &second },
    ];
    let asked = args.model.requests(places)?;
    let (prompt, output) = lengths(&asked[0])?;
    let [prefill, decode] = asked.map(|request| args.engine.into_iter().fold(request, PlanRequest::for_engine));
    let question = Disaggregation { prefill, decode, prompt, output, link: args.link };
    let answer = question.answer().map_err(|error| Failure::new(error.exit_code(), error))?;
    answer.notes.iter().for_each(|said| note(said));
    match args.format {
        Format::Table if !args.json => print_table(&answer.table()),
        _ => print_json(&answer),
    }
}

/// The lengths of a request, which the budget states as those of its workload.
fn lengths(request: &PlanRequest) -> Result<(u64, u64), Failure> {
    let workload = request.config().budget.workload.as_ref();
    match workload.map(|workload| (&workload.prompt, &workload.output)) {
        Some((Lengths::Fixed(prompt @ 1..), Lengths::Fixed(output @ 1..))) => Ok((*prompt, *output)),
        _ => Err(Failure::new(
            2,
            "a handover is that of one request: state --prompt and --output as numbers of tokens above 0",
        )),
    }
}
