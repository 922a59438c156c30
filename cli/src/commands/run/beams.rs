//! The best continuations of prompts.

use cacheplan::runtime::{Beams, Prompt, Prompts, RequestError, RuntimeError, Session};
use serde_json::json;

use super::{Args, failure, fit};
use crate::commands::Format;
use crate::failure::{Failure, print, print_json};
use crate::progress;

/// What is wrong with the flag itself names it.
fn named(error: RuntimeError) -> Failure {
    match error {
        RuntimeError::Request(RequestError::Beams { .. }) => Failure::new(2, format!("--beams: {error}")),
        error => failure(error),
    }
}

pub(super) fn serve(session: &mut Session, args: &Args, prompts: &Prompts, asked: &[Prompt]) -> Result<(), Failure> {
    let beams = Beams { width: args.ask.beams.unwrap_or(1), length_penalty: args.ask.length_penalty.unwrap_or(1.0) };
    if session.plan().limits.draft_positions > 1 {
        return Err(Failure::new(1, "a beam search guesses nothing; leave `speculation` out of the budget"));
    }
    let requests = args.ask.requests(session, prompts, asked)?;
    fit(session)?;
    let eos = session.generation_config().eos.clone();
    let mut all = Vec::new();
    for (request, prompt) in requests.iter().zip(asked) {
        let found = progress::during("searching", || session.beam_search(request, beams)).map_err(named)?;
        let text = |tokens: &[u32]| match prompt {
            Prompt::Ids(_) => Ok(None),
            _ => {
                let tokens: Vec<u32> = tokens.iter().copied().filter(|token| !eos.contains(token)).collect();
                let tokenizer = prompts.tokenizer().map_err(failure)?;
                tokenizer.decode(&tokens).map(Some).map_err(Failure::error)
            }
        };
        let mut shown = Vec::new();
        for hypothesis in &found {
            shown.push(json!({
                "tokens": hypothesis.tokens,
                "text": text(&hypothesis.tokens)?,
                "score": hypothesis.score,
            }));
        }
        if let (Format::Table, Some(best)) = (args.output.format, found.first()) {
            let said = text(&best.tokens)?.unwrap_or_else(|| format!("{:?}", best.tokens));
            print(&format!("{:.4}  {said}\n", best.score))?;
        }
        all.push(shown);
    }
    match args.output.format {
        Format::Json => print_json(&json!({ "beams": all })),
        Format::Table => Ok(()),
    }
}
