//! `cacheplan tiers`: how large host memory and disk must be for a hit rate, and how they are divided.

use std::fmt::Write as _;
use std::path::PathBuf;

use cacheplan::managers::simulate::tiers::{TierPoint, TiersAnswer, TiersError, TiersQuestion};
use cacheplan::managers::simulate::{Compute, Links};
use cacheplan::planner::bound::PrefillBound;
use cacheplan::planner::engines::{LowerTiers, TierFlags};
use cacheplan::planner::pictures::TierCurve;
use cacheplan::planner::{ByteSize, CachePlan, DeviceInfo, StoredStates};
use serde::Serialize;

use crate::commands::Format;
use crate::commands::load::{ModelArgs, Target, refused};
use crate::commands::simulate::{PolicyName, Requests};
use crate::failure::{Failure, note, print, write};
use crate::paint::print_table;
use crate::progress::during;

/// What an SSD gives at most: 4 lanes of 16 GT/s, 128 bits of every 130, one way.
const DISK_RATE: f64 = 16e9 * 4.0 * 128.0 / 130.0 / 8.0;
const DISK_SOURCE: &str = "PCI Express 4.0, 4 lanes";

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    requests: Requests,

    /// The most host memory for each rank, such as 1TiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    host: Option<ByteSize>,

    /// The most disk for each rank, such as 4TiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk: Option<ByteSize>,

    /// Hit tokens over prompt tokens that the tiers have to reach, such as 0.6
    #[arg(long, value_name = "SHARE")]
    target_hit: Option<f64>,

    /// Price of a GiB of host memory and of one of disk: the cheapest that reach the target are taken
    #[arg(long, value_name = "HOST,DISK", value_delimiter = ',', num_args = 1..=2)]
    prices: Vec<f64>,

    /// Bytes each second from host memory to a rank, instead of what the device's slot allows
    #[arg(long, value_name = "SIZE", value_parser = size)]
    host_rate: Option<ByteSize>,

    /// Bytes each second from the disk for a rank, instead of what a slot of 4 lanes allows
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk_rate: Option<ByteSize>,

    /// Sequences that run at a time; the plan's, and at most 16, where it is not stated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    running: Option<u32>,

    /// How states are placed and evicted
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = PolicyName::CompleteLru)]
    policy: PolicyName,

    /// How states are stored in host memory and on the disk
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Stored::Own)]
    stored_states: Stored,

    /// Tokens per chunk of the model's scan
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    chunk: u32,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// As JSON, which is `--format json`
    #[arg(long)]
    json: bool,

    /// Also draw the curve
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// How states are stored below the device.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Stored {
    /// As checkpoints are on the device
    Own,
    /// Those of float32 in bfloat16: half the bytes, less precision
    Bf16,
    /// One byte an element and a scale for each head and channel: a quarter, less precision still
    Int8,
}

impl From<Stored> for StoredStates {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Own => Self::Own,
            Stored::Bf16 => Self::Bf16,
            Stored::Int8 => Self::Int8,
        }
    }
}

/// A tier, or a rate, of nothing is left out instead of stated.
fn size(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>() {
        Ok(ByteSize(0)) => Err("0 bytes are no tier; leave the flag out".to_owned()),
        Ok(size) => Ok(size),
        Err(error) => Err(error.to_string()),
    }
}

/// The answer, with what it rests on and what engines are told.
#[derive(Serialize)]
struct Said<'a> {
    trace: String,
    answer: &'a TiersAnswer,
    /// Who states each rate.
    sources: Sources,
    engines: Vec<TierFlags>,
}

#[derive(Serialize)]
struct Sources {
    host_rate: &'static str,
    disk_rate: &'static str,
    /// What computing takes; absent where no rates of the device are known.
    computing: Option<&'static str>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let request = args.model.request(&args.target)?;
    let ranks = request.ranks().map_err(refused)?;
    let plan = ranks.into_stage(0).map_err(refused)?;
    let requests = args.requests.load()?;
    let bound = request.prefill(&plan);
    if bound.is_none() {
        note("no rates of the device, or no weights, are known, so that every load counts as if it beat computing");
    }
    let (slot, slot_source) =
        request.device().map_or_else(|| DeviceInfo::cpu("", 0, 0).host_link(), DeviceInfo::host_link);
    let stated = |rate: Option<ByteSize>, known: f64, source| match rate {
        Some(rate) => (rate.0 as f64, "stated"),
        None => (known, source),
    };
    let (host_rate, host_source) = stated(args.host_rate, slot, slot_source);
    let (disk_rate, disk_source) = stated(args.disk_rate, DISK_RATE, DISK_SOURCE);
    let prices = match args.prices.as_slice() {
        [] => None,
        [host, disk] => Some([*host, *disk]),
        _ => return Err(Failure::new(2, "--prices takes two: of a GiB of host memory, and of one of disk")),
    };
    let compute = bound.as_ref().map(|bound| move |from: usize, to: usize| bound.seconds(from as u64, to as u64));
    let question = TiersQuestion {
        plan: &plan,
        chunk: args.chunk as usize,
        policy: args.policy.into(),
        running: args.running.map(|running| running as usize),
        host: args.host.map_or(0, |size| size.0),
        disk: args.disk.map_or(0, |size| size.0),
        stored: args.stored_states.into(),
        target: args.target_hit,
        links: Links { host: host_rate, disk: disk_rate },
        compute: compute.as_ref().map(|compute| compute as Compute<'_>),
        prices,
    };
    let answer = during("replaying the trace over sizes and splits", || question.answer(&requests));
    let answer = answer.map_err(|error| match error {
        TiersError::Value { .. } => Failure::new(2, error),
        TiersError::TooSmall { .. } => Failure::new(3, error),
        TiersError::NoReuse { .. } => Failure::new(4, error),
        error => Failure::error(error),
    })?;
    let sources =
        Sources { host_rate: host_source, disk_rate: disk_source, computing: bound.as_ref().map(PrefillBound::source) };
    let said = Said { trace: args.requests.title(), answer: &answer, sources, engines: flags(&answer, &plan) };
    if let Some(path) = &args.svg {
        write(path, &curve(&said, &plan).svg())?;
    }
    match args.format {
        Format::Table if !args.json => print_table(&table(&said, &plan))?,
        _ => print(&(serde_json::to_string_pretty(&said).map_err(Failure::error)? + "\n"))?,
    }
    match (answer.target, &answer.chosen) {
        (Some(target), None) => {
            let most = answer.point().hit_rate;
            Err(Failure::new(
                3,
                format!(
                    "nothing tried reaches {target}: the most is {most:.4}, and {:.4} with room for everything",
                    answer.ceiling
                ),
            ))
        }
        _ => Ok(()),
    }
}

fn flags(answer: &TiersAnswer, plan: &CachePlan) -> Vec<TierFlags> {
    let point = answer.point();
    let [_, _, state] = answer.unit_bytes;
    let ratio = |states: u64, keys: u64| (state > 0 && keys > 0).then(|| states as f64 / keys as f64);
    let device = point.sizes.device;
    let live = plan.slots.live.saturating_mul(state as u64);
    let lower = [point.sizes.host, point.sizes.disk];
    LowerTiers {
        host: point.host(),
        disk: point.disk(),
        host_states: point.sizes.host.states.checked_div(answer.stored_state_bytes as u64).unwrap_or(0),
        running: answer.running as u64,
        distance: point.distance as u64,
        // Engines count the states of running sequences with those of prefixes.
        device_ratio: ratio(device.states.saturating_add(live), device.keys),
        lower_ratio: ratio(lower[0].states + lower[1].states, lower[0].keys + lower[1].keys),
        parallel: plan.parallel,
    }
    .flags()
}

fn curve(said: &Said<'_>, plan: &CachePlan) -> TierCurve {
    let answer = said.answer;
    let point = |point: &TierPoint| {
        let tiers = format!("host {}, disk {}", ByteSize(point.host()), ByteSize(point.disk()));
        (point.host() + point.disk(), point.hit_rate, tiers)
    };
    TierCurve {
        title: format!("{}: {}", plan.model.title(), said.trace),
        points: answer.curve.iter().map(point).collect(),
        alone: answer.curve.first().map_or(answer.planned.hit_rate, |point| point.hit_rate),
        ceiling: answer.ceiling,
        chosen: answer.chosen.as_ref().map(|point| point.host() + point.disk()),
    }
}

/// The answer, at most 80 columns wide.
fn table(said: &Said<'_>, plan: &CachePlan) -> String {
    let answer = said.answer;
    let mut out = String::new();
    let mut line = |text: String| out.push_str(&(text.trim_end().to_owned() + "\n"));
    let million = answer.prompt_tokens as f64 / 1e6;
    line(format!("TRACE     {}: {} requests, {million:.1} million prompt tokens", said.trace, answer.requests));
    if answer.left_out > 0 {
        let longer = format!("longer than max_seq_len {}", plan.limits.max_seq_len);
        line(format!("          {} more are left out, {longer}", answer.left_out));
    }
    let [keys, windows, state] = answer.unit_bytes;
    let mut units = format!("{} of keys for {} tokens", ByteSize(keys as u64), answer.page);
    if windows > 0 {
        let _ = write!(units, ", {} of windows", ByteSize(windows as u64));
    }
    if state > 0 {
        let _ = write!(units, ", {} a state", ByteSize(state as u64));
    }
    let stored = answer.point().stored;
    line(format!("CACHES    {units}"));
    if stored != StoredStates::Own {
        let bytes = ByteSize(answer.stored_state_bytes as u64);
        line(format!("          a state below the device is stored in {stored}: {bytes}; no engine does that"));
    }
    let rate = |rate: f64| format!("{:.1} GB/s", rate / 1e9);
    let links = answer.links;
    line(format!("LINKS     host {} ({}), disk {}", rate(links.host), said.sources.host_rate, rate(links.disk)));
    line(format!("          ({}); at most, and nothing overlaps", said.sources.disk_rate));
    if let Some(source) = said.sources.computing {
        line(format!("          a load counts where it beats computing ({source})"));
    }
    let plural = if answer.running == 1 { "" } else { "s" };
    line(format!(
        "RUNS      {} sequence{plural} at a time; the trace was replayed {} times",
        answer.running, answer.replays
    ));
    line(String::new());
    line("host         disk         states of       hit     from    from    from".to_owned());
    line("                          device  below   rate    device  host    disk".to_owned());
    line(row(&answer.planned, answer) + "  plan");
    for (at, point) in answer.curve.iter().enumerate() {
        if at > 0 || point != &answer.planned {
            line(row(point, answer));
        }
    }
    line(format!("{:42}{:6.4}", "room for everything", answer.ceiling));
    line(String::new());
    let point = answer.point();
    let what = match (answer.target, &answer.chosen) {
        (Some(target), Some(_)) => format!("the smallest tried that reach {target}"),
        (Some(target), None) => format!("the largest, which do not reach {target}"),
        (None, Some(_)) => "more brings less than a hundredth".to_owned(),
        (None, None) => "the largest".to_owned(),
    };
    line(format!("TIERS     {what}:"));
    for (tier, kinds) in [("device", point.sizes.device), ("host", point.sizes.host), ("disk", point.sizes.disk)] {
        if kinds.bytes() == 0 {
            continue;
        }
        let windows = if windows > 0 { format!(", windows {}", ByteSize(kinds.windows)) } else { String::new() };
        let states = if state > 0 { format!(", states {}", ByteSize(kinds.states)) } else { String::new() };
        let all = ByteSize(kinds.bytes()).to_string();
        line(format!("          {tier:6} {all:>11}: keys {}{windows}{states}", ByteSize(kinds.keys)));
    }
    let moved = &point.moved;
    if point.host() + point.disk() > 0 {
        let (loaded, written) = (ByteSize(moved.host_bytes), ByteSize(moved.written_bytes));
        line(format!("          loaded {loaded}, of it {} from disk; written {written}", ByteSize(moved.disk_bytes)));
        line(format!("          {} requests loaded, {} computed instead", moved.loads, moved.declined));
        if answer.bounded {
            line(format!("          saved at least by the bound: {:.0} s of computing", moved.seconds_saved));
        }
    }
    if let Some(price) = answer.price {
        line(format!("          price {price:.2}"));
    }
    line(String::new());
    line("A FURTHER GiB       of the hit rate".to_owned());
    for gain in &answer.gains {
        let over = format!("(over {})", ByteSize(gain.added));
        line(format!("  {:16}  {:+.5} {over}", gain.place, gain.per_gib));
    }
    if answer.distances.len() > 1 {
        line(String::new());
        let said = answer.distances.iter().map(|point| format!("{} {:.4}", point.distance, point.hit_rate));
        let said: Vec<String> = said.collect();
        line("A STATE EVERY … TOKENS of a prompt".to_owned());
        for some in said.chunks(5) {
            line(format!("  {}", some.join(" · ")));
        }
    }
    if !answer.storages.is_empty() {
        line(String::new());
        let said = answer.storages.iter().map(|point| format!("{} {:.4}", point.stored, point.hit_rate));
        line("THE SAME TIERS, STATES BELOW STORED IN".to_owned());
        line(format!("  {}", said.collect::<Vec<_>>().join(" · ")));
    }
    for TierFlags { engine, read_in, lines, notes } in &said.engines {
        line(String::new());
        line(format!("# {engine} {read_in}"));
        lines.iter().for_each(|text| line(text.clone()));
        notes.iter().for_each(|text| line(format!("# {text}")));
    }
    out
}

fn row(point: &TierPoint, answer: &TiersAnswer) -> String {
    let size = |bytes: u64| if bytes == 0 { "-".to_owned() } else { ByteSize(bytes).to_string() };
    let share = |share: f64| format!("{:.1} %", 100.0 * share);
    let has_below = point.host() + point.disk() > 0;
    let below = if has_below { share(point.lower_split.states) } else { "-".to_owned() };
    let of = |tokens: u64| format!("{:.4}", tokens as f64 / answer.prompt_tokens.max(1) as f64);
    let (host, disk) = (point.moved.host_tokens, point.moved.disk_tokens);
    let device = of(point.hit_tokens.saturating_sub(host + disk));
    format!(
        "{:12} {:12} {:7} {:7} {:.4}  {device}  {}  {}",
        size(point.host()),
        size(point.disk()),
        share(point.device_split.states),
        below,
        point.hit_rate,
        of(host),
        of(disk),
    )
}
