//! `docker run`, and a container's image, entrypoint and arguments.

use std::collections::BTreeSet;

use super::engine;
use super::error::{ManifestError, Place};
use super::origin::Origin;
use super::unknown::{self, MARKS, Why};
use super::variables::{Variables, is_name};
use crate::visible::OF_CONTAINER;

/// Options that have no value; all others have one.
const SWITCHES: [&str; 15] = [
    "--detach",
    "--init",
    "--interactive",
    "--tty",
    "--rm",
    "--privileged",
    "--read-only",
    "--no-healthcheck",
    "--oom-kill-disable",
    "--publish-all",
    "--quiet",
    "--replace",
    "--sig-proxy",
    "--disable-content-trust",
    "--use-api-socket",
];
const SHORT_SWITCHES: [char; 5] = ['d', 'i', 't', 'P', 'q'];

/// The container that `docker run` starts, and its GPUs. `shell` has the variables of whoever runs it.
pub(super) fn run(
    words: &[String],
    shell: &Variables,
    origin: &Origin<'_>,
) -> Result<Option<(Container, Option<u32>)>, ManifestError> {
    let (reading, at) = (origin.reading, &origin.at);
    let mut arguments = engine::container_arguments(words).unwrap_or_default();
    let mut container = Container::default();
    let mut of_files = Variables::default();
    let (mut gpus, mut is_asked, mut by_runtime) = (None, false, false);
    while let Some((option, rest)) = arguments.split_first().filter(|(word, _)| word.starts_with('-')) {
        arguments = rest;
        if option == "--" {
            break;
        }
        let Some((name, inline)) = valued(option) else { continue };
        let value = match inline {
            Some(value) => value.to_owned(),
            None => match arguments.split_first() {
                Some((value, rest)) => {
                    arguments = rest;
                    value.clone()
                }
                None => break,
            },
        };
        match name.as_str() {
            "-e" | "--env" => match value.split_once('=') {
                Some((name, value)) => container.variables.set(name, vec![value.to_owned()], true),
                // Its value is that of the shell, of a list its first word.
                None if is_name(&value) => {
                    let written = || format!("${value}");
                    let word = shell.seen(&value, written).and_then(|words| words.first().cloned());
                    let word = word.unwrap_or_else(|| Why::NotSet.mark(&written()));
                    reading.charge(word.len(), at)?;
                    container.variables.set(&value, vec![word], true);
                }
                None => {}
            },
            "--env-file" => {
                let file = if value.contains(MARKS) { "" } else { &value };
                of_files.unread(origin.unread(&format!("--env-file {file}")));
            }
            "--gpus" => (gpus, is_asked) = (devices(&value), true),
            "--runtime" => by_runtime = value == RUNTIME,
            "--device" if value.starts_with("nvidia.com/gpu=") && !value.ends_with("=all") => {
                gpus = Some(gpus.unwrap_or(0) + 1);
            }
            // An empty one takes back the image's.
            "--entrypoint" => {
                container.entrypoint = Some([value].into_iter().filter(|word| !word.is_empty()).collect());
            }
            _ => {}
        }
    }
    container.variables.stand_over(of_files);
    // What is asked for is what Docker sets the variable to.
    if by_runtime && !is_asked && gpus.is_none() {
        gpus = visible(&container.variables, at)?;
    }
    let Some((image, arguments)) = arguments.split_first() else { return Ok(None) };
    container.image = Some(image.clone());
    container.arguments = arguments.to_vec();
    Ok(Some((container, gpus)))
}

/// The name of an option that has a value, and the value if it stands in the same word.
fn valued(option: &str) -> Option<(String, Option<&str>)> {
    if option.starts_with("--") {
        return match option.split_once('=') {
            Some((name, value)) => Some((name.to_owned(), Some(value))),
            None => (!SWITCHES.contains(&option)).then(|| (option.to_owned(), None)),
        };
    }
    // `-itp 8000:8000`: the first letter that is no switch has the value.
    let (index, letter) = option.char_indices().skip(1).find(|(_, letter)| !SHORT_SWITCHES.contains(letter))?;
    let value = &option[index + letter.len_utf8()..];
    Some((format!("-{letter}"), (!value.is_empty()).then(|| value.trim_start_matches('='))))
}

/// The GPUs of `--gpus`: a number, `device=0,1`, `count=2`; `all` says none.
fn devices(value: &str) -> Option<u32> {
    let value = value.trim_matches(['"', '\'']);
    match value.split_once("device=") {
        Some((_, ids)) => u32::try_from(ids.split(',').filter(|id| !id.contains('=')).count()).ok(),
        None => value.trim_start_matches("count=").split(',').next()?.parse().ok(),
    }
}

/// The runtime that gives a container the GPUs which a variable of it names.
pub(super) const RUNTIME: &str = "nvidia";

/// How many GPUs that runtime gives a container; none where it says none, or all.
pub(super) fn visible(variables: &Variables, at: &Place) -> Result<Option<u32>, ManifestError> {
    let Some(listed) = variables.get(OF_CONTAINER).and_then(<[String]>::first) else { return Ok(None) };
    let listed = unknown::known(listed, at)?;
    Ok(match listed.trim() {
        "all" => None,
        "" | "none" | "void" => Some(0),
        listed => u32::try_from(listed.split(',').collect::<BTreeSet<_>>().len()).ok(),
    })
}

/// What a container runs.
#[derive(Debug, Default)]
pub(super) struct Container {
    pub(super) image: Option<String>,
    pub(super) entrypoint: Option<Vec<String>>,
    pub(super) arguments: Vec<String>,
    pub(super) variables: Variables,
}

impl Container {
    /// The words that it runs.
    pub(super) fn words(&self, at: &Place) -> Result<Vec<String>, ManifestError> {
        match (&self.entrypoint, &self.image) {
            (Some(entrypoint), _) => Ok([entrypoint.as_slice(), &self.arguments].concat()),
            (None, Some(image)) => {
                let words = engine::entrypoint(image, &self.arguments);
                let has_model = words.iter().any(|word| word.starts_with("--model"));
                if has_model && engine::start(&words).is_none() {
                    // What it runs may be an engine.
                    unknown::known(image, at)?;
                }
                Ok(words)
            }
            (None, None) => Ok(self.arguments.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("all", None)]
    #[case("2", Some(2))]
    #[case("\"device=0,1,3\"", Some(3))]
    #[case("count=4,capabilities=utility", Some(4))]
    fn gpus_are_counted(#[case] value: &str, #[case] expected: Option<u32>) {
        assert_eq!(devices(value), expected);
    }

    #[rstest]
    #[case("--rm", None)]
    #[case("-it", None)]
    #[case("-p8000:8000", Some(("-p", Some("8000:8000"))))]
    #[case("-itv", Some(("-v", None)))]
    #[case("--shm-size=1g", Some(("--shm-size", Some("1g"))))]
    #[case("--name", Some(("--name", None)))]
    fn options_with_values_are_told_from_switches(
        #[case] option: &str,
        #[case] expected: Option<(&str, Option<&str>)>,
    ) {
        let found = valued(option);
        assert_eq!(found.as_ref().map(|(name, value)| (name.as_str(), *value)), expected);
    }
}
