//! A chat, turn by turn: a line of what is typed or piped in is what the user says.

use std::io::{BufRead, IsTerminal, Read, stdin};

use cacheplan::files::Limit;
use cacheplan::runtime::{Prompt, Prompts, SamplingOptions, Session};
use cacheplan::text::{Message, TextStream};

use super::interrupt::Interrupt;
use super::results::{held, stream};
use super::template::Templates;
use super::{Args, failure, fit};
use crate::failure::{Failure, print, say};

pub(super) fn serve(session: &mut Session, args: &Args, prompts: &Prompts) -> Result<(), Failure> {
    // What is missing is said before anybody types.
    let tokenizer = prompts.tokenizer().map_err(Failure::error)?;
    fit(session)?;
    let interrupt = Interrupt::listen()?;
    let mut templates = Templates::new(prompts);
    let mut messages: Vec<Message> = args.ask.system.iter().map(|system| Message::new("system", system)).collect();
    let mut last = None;
    while let Some(line) = turn(&interrupt)? {
        messages.push(Message::new("user", line));
        let ids = templates.ids(&Prompt::Chat(messages.clone()))?;
        let streams = vec![Some(TextStream::new(tokenizer, &ids, args.ask.stop.clone()))];
        let turns = messages.len();
        let request = args.ask.text_request(session, ids, turns, None, &SamplingOptions::default());
        let requests = [request];
        let (generation, mut texts) = stream(session, &requests, streams, &interrupt, false, true)?;
        print("\n")?;
        let run = session.report(&requests, &generation).map_err(failure)?;
        held(&run)?;
        last = Some((run, generation));
        if interrupt.heard() {
            break;
        }
        messages.push(Message::new("assistant", texts.pop().flatten().unwrap_or_default()));
    }
    match last {
        Some((run, generation)) => args.results.write(&run, &generation),
        None => Ok(()),
    }
}

/// The next line that says something; `None` at the end.
fn turn(interrupt: &Interrupt) -> Result<Option<String>, Failure> {
    loop {
        if stdin().is_terminal() {
            say("> ");
        }
        let mut line = String::new();
        let most = Limit::PROMPT.bytes;
        let read = interrupt.idle(|| stdin().lock().take(most + 1).read_line(&mut line)).map_err(Failure::error)?;
        if read as u64 > most {
            return Err(Failure::new(1, format!("standard input: a line of more than {most} bytes is no turn")));
        }
        match line.trim() {
            _ if read == 0 => return Ok(None),
            "" => {}
            said => return Ok(Some(said.to_owned())),
        }
    }
}
