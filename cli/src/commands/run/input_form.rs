//! Ways to ask a model, and which flags of `run` each consumes: one that nothing consumes is wrong usage, never dropped in
//! silence.

use cacheplan::planner::BudgetKey;
use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::failure::Failure;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputForm {
    /// Token ids alone.
    Ids,
    /// Text, with or without ids beside it.
    Text,
    /// Text in the model's template.
    Chat,
    /// The same, turn by turn.
    Turns,
    /// A file of requests.
    Requests,
}

use InputForm::{Chat, Ids, Requests, Text, Turns};

const ANY: &[InputForm] = &[Ids, Text, Chat, Turns, Requests];

/// Every flag, by its id, with the ways that consume it, and whether a beam search does.
const CONSUMED: [(&str, &[InputForm], bool); 35] = [
    ("model", ANY, true),
    ("assume", ANY, true),
    ("description", ANY, true),
    ("budget", ANY, true),
    ("prompt_ids", &[Ids, Text], true),
    ("prompt", &[Text, Chat], true),
    ("chat", &[Chat, Turns], true),
    ("system", &[Chat, Turns], true),
    ("requests", &[Requests], false),
    ("out", &[Requests], false),
    ("max_new_tokens", ANY, true),
    ("stop", ANY, false),
    ("beams", &[Ids, Text, Chat], true),
    ("length_penalty", &[], true),
    ("temperature", ANY, false),
    ("top_k", ANY, false),
    ("top_p", ANY, false),
    ("min_p", ANY, false),
    ("repetition_penalty", ANY, true),
    ("presence_penalty", ANY, true),
    ("frequency_penalty", ANY, true),
    ("seed", ANY, false),
    ("draft", ANY, false),
    ("draft_tree", ANY, false),
    ("ignore_eos", ANY, true),
    ("products", ANY, true),
    ("no_prefix_reuse", ANY, false),
    ("disk", ANY, false),
    ("static_graphs", ANY, true),
    ("onnx_runtime", ANY, true),
    ("logits", &[Ids, Text, Chat], false),
    ("stats", ANY, true),
    ("trace", ANY, true),
    ("report", ANY, false),
    ("timeline", ANY, false),
];

/// Flags whose answers go elsewhere in some ways.
const OUTPUT: [(&str, &[InputForm], bool); 2] = [("device", ANY, true), ("format", &[Ids, Text, Chat], true)];

/// Whether a flag is consumed; `None` for one that nobody has thought of.
fn is_consumed(flag: &str, way: InputForm, beams: bool) -> Option<bool> {
    if BudgetKey::all().iter().any(|key| key.path == flag) {
        // A beam search guesses nothing, and keeps nothing for later prompts.
        const UNSEARCHED: [&str; 5] = ["speculation.", "host.", "disk.", "workload.checkpoint", "max_prefill_tokens"];
        return Some(!(beams && UNSEARCHED.iter().any(|keys| flag.starts_with(keys))));
    }
    let (_, ways, with_beams) = CONSUMED.iter().chain(&OUTPUT).find(|(known, ..)| *known == flag)?;
    // What no way consumes by itself is a beam search's own.
    Some(if beams { *with_beams && (ways.is_empty() || ways.contains(&way)) } else { ways.contains(&way) })
}

impl InputForm {
    /// How it is asked for.
    fn shown(self) -> &'static str {
        match self {
            Ids => "--prompt-ids",
            Text => "--prompt",
            Chat => "--chat --prompt",
            Turns => "--chat",
            Requests => "--requests",
        }
    }

    fn of(matches: &ArgMatches) -> Self {
        let has = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        match () {
            () if has("requests") => Requests,
            () if has("chat") && has("prompt") => Chat,
            () if has("chat") => Turns,
            () if has("prompt") => Text,
            () => Ids,
        }
    }
}

/// Refuses flags that what is asked does not consume.
pub(super) fn refuse_unconsumed(matches: &ArgMatches) -> Result<(), Failure> {
    let stated = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let (way, beams) = (InputForm::of(matches), stated("beams"));
    let unconsumed = |id: &&str| stated(id) && is_consumed(id, way, beams) == Some(false);
    let Some(id) = matches.ids().map(clap::Id::as_str).find(unconsumed) else { return Ok(()) };
    let flag = match BudgetKey::all().iter().find(|key| key.path == id) {
        Some(key) => key.flag.to_owned(),
        None => format!("--{}", id.replace('_', "-")),
    };
    let asked = if beams { format!("{} --beams", way.shown()) } else { way.shown().to_owned() };
    Err(Failure::new(2, format!("{flag} does nothing with {asked}; leave it out")))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use super::super::Args;
    use super::*;

    fn run() -> Command {
        Args::augment_args(Command::new("run"))
    }

    #[test]
    fn every_flag_is_consumed_somewhere() {
        for arg in run().get_arguments() {
            let id = arg.get_id().as_str();
            let somewhere =
                ANY.iter().any(|&way| [false, true].map(|beams| is_consumed(id, way, beams)) != [Some(false); 2]);
            assert!(is_consumed(id, Ids, false).is_some(), "who consumes {id} is not stated");
            assert!(somewhere, "{id} is consumed by nobody");
        }
        for (id, ..) in CONSUMED.iter().chain(&OUTPUT) {
            assert!(run().get_arguments().any(|arg| arg.get_id() == id), "there is no {id}");
        }
    }

    /// Every flag in every way of asking.
    #[test]
    fn a_flag_is_consumed_or_refused() {
        let ways = [
            (Ids, &["--prompt-ids", "1"][..]),
            (Text, &["--prompt", "a"]),
            (Chat, &["--chat", "--prompt", "a"]),
            (Turns, &["--chat"]),
            (Requests, &["--requests", "r"]),
        ];
        let (mut taken, mut refused) = (0, 0);
        for (way, asked) in ways {
            for beams in [&[][..], &["--beams", "2"]] {
                for arg in run().get_arguments() {
                    let Some(long) = arg.get_long() else { continue };
                    let flag = format!("--{long}");
                    let named = arg.get_possible_values().first().map(|value| value.get_name().to_owned());
                    let samples =
                        named.into_iter().chain(["1", "json", "cpu", "1GiB", "f16", "0.5", "a=1"].map(str::to_owned));
                    let parsed = samples.map(Some).chain([None]).find_map(|value| {
                        let line = ["run", "m"].into_iter().chain(asked.iter().copied()).chain(beams.iter().copied());
                        let flag = match (&value, arg.is_require_equals_set()) {
                            (Some(value), true) => vec![format!("{flag}={value}")],
                            (value, _) => std::iter::once(flag.clone()).chain(value.clone()).collect(),
                        };
                        let line = line.map(str::to_owned).chain(flag);
                        run().try_get_matches_from(line).ok()
                    });
                    // What clap itself refuses is refused.
                    let Some(matches) = parsed else { continue };
                    let id = arg.get_id().as_str();
                    let consumed = is_consumed(
                        id,
                        InputForm::of(&matches),
                        matches.value_source("beams") == Some(ValueSource::CommandLine),
                    );
                    if beams.is_empty() || ![Turns, Requests].contains(&way) {
                        assert_eq!(
                            refuse_unconsumed(&matches).is_ok(),
                            consumed == Some(true),
                            "{asked:?} {beams:?} {flag}"
                        );
                    }
                    *(if consumed == Some(true) { &mut taken } else { &mut refused }) += 1;
                }
            }
        }
        assert!(taken > 300 && refused > 30, "{taken} flags were taken, {refused} refused");
    }
}
