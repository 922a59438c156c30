//! Other programs, run to their end.

use std::process::{Command, Output};

/// Runs a command to its end; an exit status other than 0 is an error that shows the command.
pub(crate) fn sh(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

/// What a command says; an exit status other than 0 is an error that shows what it complains of.
pub(crate) fn output(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(format!("{command:?}:\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// What a command says on its standard output.
pub(crate) fn said(command: &mut Command) -> Result<String, String> {
    Ok(String::from_utf8_lossy(&output(command)?.stdout).into_owned())
}
