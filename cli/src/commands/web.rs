//! `cacheplan web`: the planner as a page on this machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cacheplan::transforms::{Model, ReadOptions};
use cacheplan_web::{DiskModel, Server};

use crate::commands::hub;
use crate::commands::load::{open, unread};
use crate::failure::{Failure, print_now};
use crate::numbers::whole;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Models that the page offers beside those of the Hugging Face cache, folders or files; the first is open
    #[arg(value_parser = hub::model())]
    model: Vec<PathBuf>,

    /// The port on the loopback address; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8347, value_parser = whole::<u16>(0..=u16::MAX.into()))]
    port: u16,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // What cannot be read is said here, not to whoever opens the page.
    for path in &args.model {
        open(path, &ReadOptions::default(), |error| unread(path, error))?;
    }
    let named =
        args.model.iter().map(|path| DiskModel { name: name(path), path: path.display().to_string(), named: true });
    let places = named.chain(hub::places()).collect();
    let server = Server::open(args.port, places, opened).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            Failure::new(1, format!("port {} is taken; `--port 0` takes any that is free", args.port))
        }
        _ => Failure::error(error),
    })?;
    print_now(&format!("{}\n", server.address()))?;
    server.run();
    Ok(())
}

/// A model as a MODEL argument names it; what is piped into the server is none.
fn opened(typed: &str) -> Result<Model, (u8, String)> {
    let path = hub::find(Path::new(if typed == "-" { "./-" } else { typed }));
    open(&path, &ReadOptions::default(), |error| unread(&path, error)).map_err(Failure::said)
}

fn name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
