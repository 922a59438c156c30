//! `--help`: every flag on as few lines as it takes. What clap makes of it stands each on lines of its own, between blank ones.

use clap::{Arg, Command};

use crate::commands::budget::OWN;

/// The help of the subcommand that `words` ask about, the program's name left out; `None` where the short one is asked for.
pub(crate) fn in_full(mut command: Command, words: &[String]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).take_while(|word| *word != "--").collect();
    let names = words.strip_prefix(&["help"]).unwrap_or(&words);
    if names.len() == words.len() && !words.contains(&"--help") {
        return None;
    }
    command.build();
    for name in names {
        let Some(within) = command.find_subcommand(name) else { break };
        command = within.clone();
    }
    let shown = command.mut_args(|arg: Arg| match arg.get_id().as_str() {
        "help" => arg.help("Print help; -h prints what most people state"),
        // What the command itself takes comes first.
        _ if arg.get_help_heading() == Some(OWN) => arg.hide_short_help(false).help_heading(None::<&'static str>),
        _ => arg.hide_short_help(false),
    });
    Some(shown.clone().render_help().to_string())
}
