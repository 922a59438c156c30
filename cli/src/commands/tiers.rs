//! `cacheplan tiers`: how large host memory and disk must be for a hit rate, and how they are divided.

use std::path::PathBuf;

use cacheplan::managers::simulate::tiers::{TiersAsked, TiersError};
use cacheplan::planner::{ByteSize, StoredStates};

use crate::commands::Format;
use crate::commands::load::{ModelArgs, Target, refused};
use crate::commands::simulate::{PolicyName, Requests};
use crate::failure::{Failure, note, print_json, write};
use crate::numbers::whole;
use crate::paint::print_table;
use crate::progress::during;

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
    #[arg(long, value_name = "SIZE")]
    host: Option<ByteSize>,

    /// The most disk for each rank, such as 4TiB
    #[arg(long, value_name = "SIZE")]
    disk: Option<ByteSize>,

    /// Hit tokens over prompt tokens that the tiers have to reach, such as 0.6
    #[arg(long, value_name = "SHARE")]
    target_hit: Option<f64>,

    /// Price of a GiB of host memory and of one of disk: the cheapest that reach the target are taken
    #[arg(long, value_name = "HOST,DISK", value_delimiter = ',', num_args = 1..=2)]
    prices: Vec<f64>,

    /// Bytes each second from host memory to a rank, instead of what the device's slot allows
    #[arg(long, value_name = "SIZE")]
    host_rate: Option<ByteSize>,

    /// Bytes each second from the disk for a rank, instead of what a slot of 4 lanes allows
    #[arg(long, value_name = "SIZE")]
    disk_rate: Option<ByteSize>,

    /// Sequences that run at a time; the plan's, and at most 16, where it is not stated
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1 << 20))]
    running: Option<u32>,

    /// How states are placed and evicted
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = PolicyName::CompleteLru)]
    policy: PolicyName,

    /// How states are stored in host memory and on the disk
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Stored::Own)]
    stored_states: Stored,

    /// Tokens per chunk of the model's scan
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole::<u32>(1..=1 << 20))]
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

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let request = args.model.request(&args.target)?;
    let requests = args.requests.load()?;
    let prices = match args.prices.as_slice() {
        [] => None,
        [host, disk] => Some([*host, *disk]),
        _ => return Err(Failure::new(2, "--prices takes two: of a GiB of host memory, and of one of disk")),
    };
    let asked = TiersAsked {
        host: args.host,
        disk: args.disk,
        target_hit: args.target_hit,
        prices,
        host_rate: args.host_rate,
        disk_rate: args.disk_rate,
        running: args.running,
        policy: args.policy.into(),
        stored_states: args.stored_states.into(),
        chunk: args.chunk,
    };
    let told = during("replaying the trace over sizes and splits", || {
        asked.answer(&request, args.requests.title(), &requests)
    });
    let told = told.map_err(|error| match error {
        TiersError::Plan(error) => refused(error),
        error if error.exit_code() == 1 => Failure::error(error),
        error => Failure::new(error.exit_code(), error),
    })?;
    told.note().into_iter().for_each(note);
    if let Some(path) = &args.svg {
        write(path, &told.curve().svg())?;
    }
    match args.format {
        Format::Table if !args.json => print_table(&told.table())?,
        _ => print_json(&told)?,
    }
    told.out_of_reach().map_or(Ok(()), |why| Err(Failure::new(3, why)))
}
