//! From the words of a command to the engines that it starts.

use std::collections::BTreeMap;

use super::docker::{self, Container};
use super::error::ManifestError;
use super::origin::{Origin, launch};
use super::unknown::{DOLLAR, known};
use super::variables::{Variables, name_length};
use super::{engine, shell};
use crate::started::base;
use crate::words::assignment;
use crate::{Launch, secret};

/// Commands within commands: `bash -c "docker run image bash -c ..."`.
const DEPTH: usize = 5;

/// The engines that a script starts.
pub(super) fn of_script(script: &str, origin: &Origin<'_>) -> Result<Vec<Launch>, ManifestError> {
    let run = |words: &[String], variables: Variables, origin: &Origin<'_>| launches(words, variables, origin, DEPTH);
    shell::launches(script, Variables::default(), origin, &run)
}

/// The engines that words start, behind variables of their own.
pub(super) fn of_words(
    words: &[String],
    env: &BTreeMap<String, String>,
    origin: &Origin<'_>,
) -> Result<Vec<Launch>, ManifestError> {
    let own = words.iter().map_while(|word| assignment(word));
    let mut variables = Variables::default();
    for (name, value) in env.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain(own.clone()) {
        variables.set(name, vec![value.to_owned()], true);
    }
    launches(&words[own.count()..], variables, origin, DEPTH)
}

/// The engines that words start which are handed to a program as they are. What a variable has put into some of them is hidden where
/// it is a secret of others.
pub(super) fn of_program(
    mut words: Vec<String>,
    of_variables: &[bool],
    variables: Variables,
    origin: &Origin<'_>,
) -> Result<Vec<Launch>, ManifestError> {
    if let Some((index, engine::Start::Engine)) = engine::start(&words) {
        secret::hide_again(&mut words[index..], &of_variables[index..]);
    }
    launches(&words, variables, origin, DEPTH)
}

/// The engines that a container starts.
pub(super) fn of_container(container: Container, origin: &Origin<'_>) -> Result<Vec<Launch>, ManifestError> {
    let origin = Origin { image: container.image.clone(), ..origin.clone() };
    launches(&container.words(&origin.at)?, container.variables, &origin, DEPTH)
}

/// What `env -u NAME` and `env -i` take away.
fn cleared(before: &[String], variables: &mut Variables) {
    let mut words = before.iter().skip_while(|word| base(word) != "env");
    if words.next().is_none() {
        return;
    }
    while let Some(option) = words.next().filter(|word| word.starts_with('-')) {
        match option.strip_prefix("--unset=").or_else(|| option.strip_prefix("-u")) {
            Some("") => words.next().into_iter().for_each(|name| variables.unset(name)),
            Some(name) => variables.unset(name),
            None if matches!(option.as_str(), "-i" | "-" | "--ignore-environment") => *variables = Variables::default(),
            None if matches!(option.as_str(), "-C" | "--chdir") => drop(words.next()),
            None => {}
        }
    }
}

/// The engines that these words start; `depth` more commands may stand in each other.
fn launches(
    words: &[String],
    mut variables: Variables,
    origin: &Origin<'_>,
    depth: usize,
) -> Result<Vec<Launch>, ManifestError> {
    let Some((index, start)) = engine::start(words) else {
        return engine::open(words).map_or(Ok(Vec::new()), |word| known(word, &origin.at).map(|_| Vec::new()));
    };
    let Some(depth) = depth.checked_sub(1) else {
        return Err(ManifestError::TooMuch { at: origin.at.clone(), what: "a nesting of commands", most: DEPTH });
    };
    let (before, words) = words.split_at(index);
    cleared(before, &mut variables);
    // `env NAME=value program`.
    for (name, value) in before.iter().filter_map(|word| word.split_once('=')) {
        if !name.is_empty() && name_length(name) == name.len() {
            variables.set(name, vec![value.to_owned()], true);
        }
    }
    match start {
        engine::Start::Engine => {
            let mut launch = launch(words, &variables, origin)?;
            if let Some(wheel) = before.iter().find_map(|word| engine::wheel(word)) {
                (launch.version, launch.image) = (Some(wheel.to_owned()), None);
            }
            Ok(vec![launch])
        }
        engine::Start::Container => {
            let found = docker::run(words, &variables, origin.reading, &origin.at)?;
            let Some((container, gpus)) = found else { return Ok(Vec::new()) };
            let gpus = gpus.or(origin.gpus);
            let image = container.image.clone();
            let origin = Origin { image, gpus, through_shell: false, items: Vec::new(), ..origin.clone() };
            launches(&container.words(&origin.at)?, container.variables, &origin, depth)
        }
        engine::Start::Shell => {
            // The shell reads what Kubernetes has left as it is.
            let words: Vec<String> = words.iter().map(|word| word.replace(DOLLAR, "$")).collect();
            let Some((script, arguments)) = engine::script(&words) else { return Ok(Vec::new()) };
            let mut variables = variables.inherited();
            for (index, argument) in arguments.iter().enumerate().take(10) {
                variables.set(&index.to_string(), vec![argument.clone()], false);
            }
            variables.set("@", arguments.get(1..).unwrap_or_default().to_vec(), false);
            let run =
                |words: &[String], variables: Variables, origin: &Origin<'_>| launches(words, variables, origin, depth);
            shell::launches(script, variables, &Origin { is_file: false, ..origin.clone() }, &run)
        }
    }
}
