//! Requests of a file, and their outputs as lines while they come.

use std::collections::HashMap;
use std::path::Path;

use cacheplan::files::Lines;
use cacheplan::runtime::{Admission, Prompt, Prompts, Replies, Reply, Request, RequestLine, Session};
use cacheplan::text::TextStream;

use super::interrupt::Interrupt;
use super::results::{held, tell};
use super::template::Templates;
use super::{Args, failure, fit};
use crate::failure::{Failure, note, print_now};

pub(super) fn serve(
    session: &mut Session,
    args: &Args,
    prompts: &Prompts,
    lines: &[RequestLine],
) -> Result<(), Failure> {
    let mut tenants = HashMap::from([(None, 0u16)]);
    let mut requests = Vec::with_capacity(lines.len());
    let mut streams = Vec::with_capacity(lines.len());
    let mut templates = Templates::new(prompts);
    for (place, line) in lines.iter().enumerate() {
        let refused = |reason: String| Failure::error(line.refused(args.ask.file(), reason));
        let next = u16::try_from(tenants.len()).map_err(|_| refused("there are too many tenants".to_owned()))?;
        let tenant = *tenants.entry(line.tenant.as_deref()).or_insert(next);
        let ids = templates.ids(&line.prompt).map_err(|error| refused(error.said().1))?;
        let stop: Vec<String> = line.stop.iter().chain(&args.ask.stop).cloned().collect();
        let wordless = matches!(line.prompt, Prompt::Ids(_)) && stop.is_empty();
        streams.push(match wordless {
            true => None,
            false => {
                let tokenizer = prompts.tokenizer().map_err(|error| refused(error.to_string()))?;
                Some(TextStream::new(tokenizer, &ids, stop))
            }
        });
        let request = args.ask.text_request(session, ids, place, line.max_tokens, &line.sampling);
        let request = Request { arrival: line.arrival, tenant, ..request };
        session.check(place, &request).map_err(|error| refused(error.to_string()))?;
        requests.push(request);
    }
    // A place that cannot be written is found before anything is computed.
    let file = args.ask.out.as_deref().filter(|path| *path != Path::new("-"));
    let mut out = file.map(Lines::create).transpose().map_err(Failure::error)?;
    fit(session)?;
    let interrupt = Interrupt::listen()?;
    let (mut finished, mut written) = (0, Ok(()));
    let mut told = |place: usize, reply: Reply<'_>| {
        let Reply::Done(text, output) = reply else { return written.is_ok() };
        if written.is_ok() {
            finished += 1;
            let line = lines[place].answered(requests[place].prompt.len(), output, text);
            written = serde_json::to_string(&line).map_err(Failure::error).and_then(|line| match &mut out {
                Some(out) => out.push(&line).map_err(Failure::error),
                None => print_now(&(line + "\n")),
            });
        }
        written.is_ok()
    };
    let eos = session.generation_config().eos.clone();
    let mut admission = interrupt.then(Admission::Closed);
    let mut replies = Replies::new(streams, &eos, &mut admission, &mut told);
    let served = session.serve(&requests, false, &mut replies).map_err(failure);
    let served = served.and_then(|generation| replies.into_texts().map_err(Failure::error).map(|_| generation));
    let served = served.and_then(|generation| written.map(|()| generation));
    if let (Err(_), Some(beside)) = (&served, out.as_ref().and_then(Lines::beside)) {
        note(&format!("the outputs so far are in {}", beside.display()));
    }
    let generation = served?;
    out.map_or(Ok(()), Lines::finish).map_err(Failure::error)?;
    let run = session.report(&requests, &generation).map_err(failure)?;
    tell(&run);
    args.results.write(&run, &generation)?;
    held(&run)?;
    match requests.len() - finished {
        0 => Ok(()),
        left => Err(Failure::new(1, format!("interrupted: {left} of {} requests were not begun", requests.len()))),
    }
}
