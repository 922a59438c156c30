//! From the words of a command to the engines that it starts.

use std::collections::BTreeMap;

use super::docker::{self, Container};
use super::error::ManifestError;
use super::origin::{Origin, launch};
use super::passed_over::pass_over;
use super::unknown::{DOLLAR, MARKS, known};
use super::variables::{Variables, is_name};
use super::wheel::Wheels;
use super::{engine, shell, slurm};
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

/// What the words in front of a program make of its variables: `env -i -u NAME NAME=value`, `sudo --preserve-env=NAME`, which hands on no
/// others (`env_reset` of `sudoers`).
fn environment(before: &[String], variables: &mut Variables, origin: &Origin<'_>) -> Result<(), ManifestError> {
    let mut words = before.iter();
    // Whether words may state variables.
    let mut states = false;
    while let Some(word) = words.next() {
        match base(word) {
            "env" => {
                states = true;
                while let Some(option) = words.as_slice().first().filter(|word| word.starts_with('-')) {
                    words.next();
                    match option.strip_prefix("--unset=").or_else(|| option.strip_prefix("-u")) {
                        Some("") => words.next().into_iter().for_each(|name| variables.unset(name)),
                        Some(name) => variables.unset(name),
                        None if matches!(option.as_str(), "-i" | "-" | "--ignore-environment") => {
                            *variables = Variables::default();
                        }
                        None if matches!(option.as_str(), "-C" | "--chdir") => drop(words.next()),
                        None => {}
                    }
                }
            }
            "sudo" => {
                states = true;
                let (mut kept, mut keeps_all) = (Vec::new(), false);
                while let Some(option) = words.as_slice().first().filter(|word| word.starts_with('-')) {
                    words.next();
                    match option.strip_prefix("--") {
                        Some("preserve-env") => keeps_all = true,
                        Some(long) => match long.strip_prefix("preserve-env=") {
                            Some(names) => kept.extend(names.split(',')),
                            None if OF_SUDO.contains(&long) => drop(words.next()),
                            None => {}
                        },
                        None => {
                            let letters = &option[1..];
                            let valued = letters.find(|letter| "ughpCrtTUDR".contains(letter));
                            keeps_all |= letters[..valued.unwrap_or(letters.len())].contains('E');
                            if valued.is_some_and(|at| at + 1 == letters.len()) {
                                words.next();
                            }
                        }
                    }
                }
                if !keeps_all {
                    variables.keep(&kept);
                }
            }
            _ => match word.split_once('=') {
                Some((name, value)) if is_name(name) => variables.set(name, vec![value.to_owned()], true),
                _ if states && word.starts_with(MARKS) => {
                    origin.reading.charge(variables.weight(), &origin.at)?;
                    variables.unread(origin.unread("env"));
                }
                _ => states = false,
            },
        }
    }
    Ok(())
}

/// Options of `sudo` whose value is the next word.
const OF_SUDO: [&str; 11] = [
    "user",
    "group",
    "host",
    "prompt",
    "close-from",
    "role",
    "type",
    "command-timeout",
    "other-user",
    "chdir",
    "chroot",
];

/// The engines that these words start; `depth` more commands may stand in each other.
fn launches(
    words: &[String],
    mut variables: Variables,
    origin: &Origin<'_>,
    depth: usize,
) -> Result<Vec<Launch>, ManifestError> {
    let Some((index, start)) = engine::start(words) else {
        pass_over(words, origin)?;
        return engine::open(words).map_or(Ok(Vec::new()), |word| known(word, &origin.at).map(|_| Vec::new()));
    };
    let Some(depth) = depth.checked_sub(1) else {
        return Err(ManifestError::TooMuch { at: origin.at.clone(), what: "a nesting of commands", most: DEPTH });
    };
    let (before, words) = words.split_at(index);
    environment(before, &mut variables, origin)?;
    let origin = &slurm::of_step(before, origin);
    match start {
        engine::Start::Engine => {
            // `uvx vllm@0.33.0`
            let (program, wheel) =
                base(&words[0]).split_once('@').map_or((&*words[0], None), |(name, version)| (name, Some(version)));
            let words: Vec<String> =
                std::iter::once(program).chain(words[1..].iter().map(String::as_str)).map(str::to_owned).collect();
            let wheel = wheel.filter(|version| version.starts_with(|c: char| c.is_ascii_digit()));
            let mut wheels = origin.wheels.clone();
            let asked = before.iter().cloned().chain(wheel.map(|version| format!("{}=={version}", base(program))));
            asked.for_each(|word| wheels.note_word(&word));
            Ok(vec![launch(&words, &variables, &Origin { wheels, ..origin.clone() })?])
        }
        engine::Start::Container => {
            let found = docker::run(words, &variables, origin)?;
            let Some((container, gpus)) = found else { return Ok(Vec::new()) };
            let gpus = gpus.or(origin.gpus);
            let image = container.image.clone();
            let wheels = if origin.is_dockerfile { origin.wheels.clone() } else { Wheels::default() };
            let origin = Origin { image, gpus, wheels, through_shell: false, items: Vec::new(), ..origin.clone() };
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
