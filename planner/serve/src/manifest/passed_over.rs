//! Words that start no engine, and yet look as if they did.

use cacheplan_files::Shown;

use super::error::ManifestError;
use super::origin::Origin;
use super::{engine, unknown};
use crate::started::base;

/// Notes words that start no engine which is read, and yet name an engine's command, or have flags that engines alone have.
///
/// # Errors
/// Such flags without a program: an image hands them to its engine, and none that is known.
pub(super) fn pass_over(words: &[String], origin: &Origin<'_>) -> Result<(), ManifestError> {
    let written = |text: &str| Shown(&unknown::written(text)).to_string().chars().take(200).collect::<String>();
    if engine::is_named(words) {
        let line = origin.at.line.map_or(String::new(), |line| format!(" (line {line})"));
        origin.reading.pass_over(format!("`{}`{line}", written(base(&words[0]))));
    } else if let Some(flag) = engine::own_flag(words) {
        let at = origin.at.clone();
        let of = if origin.object.is_empty() { String::new() } else { format!(" of {}", origin.object) };
        let what = |program: String| format!("{program}{of}, which is told `{flag}` as engines are,");
        if words[0].starts_with('-') && !origin.through_shell {
            let image = origin
                .image
                .as_deref()
                .map_or("no image".to_owned(), |image| format!("the image `{}`", written(image)));
            let instead =
                "state an engine's own image or its command, such as [vllm, serve, ...]; render what is patched first";
            return Err(ManifestError::NotRead { at, what: what(image), instead });
        }
        let program = format!("`{}`", written(base(&words[0])));
        origin.reading.doubt(ManifestError::NotRead {
            at,
            what: what(program),
            instead: "state the engine's own command",
        });
    }
    Ok(())
}
