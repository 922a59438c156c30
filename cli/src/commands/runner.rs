//! `cacheplan-gpu`, which has the CUDA kernels and opens the driver: a command of its own, beside this one or on the path.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use cacheplan::files::Shown;

use crate::failure::Failure;

const NAME: &str = "cacheplan-gpu";

/// Where it is: beside this command, else on the path.
pub(crate) fn find() -> Option<PathBuf> {
    let file = format!("{NAME}{}", std::env::consts::EXE_SUFFIX);
    let beside = std::env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside.into_iter().chain(std::env::split_paths(&path)).map(|folder| folder.join(&file)).find(|file| file.is_file())
}

/// Runs it to its end. What it says is the answer; that it found a fault is one too.
pub(crate) fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some(runner) = find() else {
        return Err(Failure::new(
            1,
            format!(
                "there is no {NAME} beside this command or on the path; `cargo xtask gpu-build` builds it, without a GPU"
            ),
        ));
    };
    let status = Command::new(&runner).args(arguments).status();
    let status = status.map_err(|error| Failure::new(1, format!("{}: {error}", Shown(runner.display()))))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::new(
            1,
            format!("{} found what does not hold, or could not run: {status}", Shown(runner.display())),
        )),
    }
}
