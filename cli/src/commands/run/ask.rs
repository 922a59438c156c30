//! What is asked of the model, as flags.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use cacheplan::files::{Limit, Source};
use cacheplan::runtime::{Prompt, Prompts, Request, RequestLine, Sampling, SamplingError, SamplingOptions, Session};
use cacheplan::text::{Message, TextStream, no_stop};

use super::template::Templates;
use crate::failure::Failure;
use crate::numbers::{single, whole};

/// The most tokens to generate where nobody says.
const IDS: usize = 16;
const TEXT: usize = 256;

/// Prompts, and how to go on from them.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("asked").required(true).multiple(true)))]
pub(crate) struct AskArgs {
    /// Token ids of a prompt, separated by commas; give it again for another sequence of the batch
    #[arg(long, value_name = "IDS", group = "asked", value_parser = parse_ids)]
    prompt_ids: Vec<Ids>,

    /// A prompt as text, `-` for what is piped in; needs the model's tokenizer.json. Give it again for another sequence
    #[arg(long, value_name = "TEXT", group = "asked")]
    prompt: Vec<String>,

    /// Put the model's chat template around each --prompt; without one, talk turn by turn, a line each
    #[arg(long, group = "asked", conflicts_with = "prompt_ids")]
    pub(crate) chat: bool,

    /// What the system says before a chat begins
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Requests as lines of JSON (see docs/run.md), `-` for what is piped in
    #[arg(long, value_name = "FILE", group = "asked", conflicts_with_all = ["prompt_ids", "prompt", "chat", "logits"])]
    requests: Option<PathBuf>,

    /// Where the outputs of --requests go, a line of JSON each while they come [default: stdout]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_ids", "prompt", "chat"])]
    pub(crate) out: Option<PathBuf>,

    /// The most tokens to generate for each prompt [default: 16 with --prompt-ids, else as many as fit, at most 256]
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=u64::MAX))]
    max_new_tokens: Option<usize>,

    /// A string that ends a text and is no part of it; give it again for another
    #[arg(long, value_name = "TEXT", value_parser = stopping)]
    pub(crate) stop: Vec<String>,

    /// Follow the N best continuations of each prompt and give the best; without sampling
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=u64::MAX), conflicts_with_all = ["requests", "logits", "stop", "temperature"])]
    pub(crate) beams: Option<usize>,

    /// The power of its length that a beam's log-probability is divided by [default: 1]
    #[arg(long, value_name = "X", value_parser = finite)]
    pub(crate) length_penalty: Option<f32>,

    #[command(flatten)]
    sampling: SamplingArgs,
}

/// How tokens are chosen, where generation_config.json is not to decide it.
#[derive(clap::Args)]
struct SamplingArgs {
    /// What logits are divided by; 0 takes the most likely token [default: of generation_config.json, else 0, or 1 where --top-k, --top-p or --min-p is stated]
    #[arg(long, value_name = "X", value_parser = single)]
    temperature: Option<f32>,

    /// Choose among so many of the most likely tokens; 0 for all
    #[arg(long, value_name = "N", value_parser = whole::<usize>(0..=u64::MAX))]
    top_k: Option<usize>,

    /// Choose among the fewest most likely tokens that have this share together
    #[arg(long, value_name = "SHARE", value_parser = single)]
    top_p: Option<f32>,

    /// Choose among tokens at least this likely, in proportion to the most likely one
    #[arg(long, value_name = "SHARE", value_parser = single)]
    min_p: Option<f32>,

    /// Divide the logits of tokens that have occurred
    #[arg(long, value_name = "X", value_parser = single)]
    repetition_penalty: Option<f32>,

    /// Take this from the logits of tokens that were generated
    #[arg(long, value_name = "X", value_parser = single)]
    presence_penalty: Option<f32>,

    /// Take this from them for each time that they were
    #[arg(long, value_name = "X", value_parser = single)]
    frequency_penalty: Option<f32>,

    /// What the draws follow from; the second request takes the next number, and so on
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
}

#[derive(Clone)]
struct Ids(Vec<u32>);

/// What was asked, read.
pub(super) enum Asked {
    /// Prompts, all at once.
    Prompts(Vec<Prompt>),
    /// Turns of a chat, as they come.
    Turns,
    /// Requests of a file.
    Lines(Vec<RequestLine>),
}

impl AskArgs {
    /// How many prompts there are; `None` where they come from a file, or as turns.
    pub(super) fn prompts(&self) -> Option<usize> {
        let prompts = self.prompt_ids.len() + self.prompt.len();
        (prompts > 0).then_some(prompts)
    }

    /// That tokens can be chosen as flags say.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.prompt.iter().filter(|prompt| *prompt == "-").count() > 1 {
            return Err(Failure::new(2, "--prompt -: what is piped in is one prompt; state `-` once"));
        }
        self.sampling.options().over(&Sampling::default()).check().map_err(|error| unsampled(&error))
    }

    /// Refuses what decides a draw where nothing is drawn; `base` is what the model's makers say, `lines` are the requests of a file.
    pub(super) fn refuse_undrawn(&self, base: &Sampling, lines: &[RequestLine]) -> Result<(), Failure> {
        let own = lines.iter().map(|line| &line.sampling);
        self.sampling.options().refuse_undrawn(base, own).map_err(|error| unsampled(&error))
    }

    /// The file of requests, in the words of an error.
    pub(super) fn file(&self) -> String {
        match &self.requests {
            Some(path) if path.as_os_str() != "-" => path.display().to_string(),
            _ => "standard input".to_owned(),
        }
    }

    pub(super) fn read(&self) -> Result<Asked, Failure> {
        if let Some(path) = &self.requests {
            let source = Source::named(path, Limit::REQUESTS).map_err(Failure::error)?;
            return RequestLine::read(&source).map(Asked::Lines).map_err(Failure::error);
        }
        let ids = self.prompt_ids.iter().map(|ids| Ok(Prompt::Ids(ids.0.clone())));
        let texts = self.prompt.iter().map(|text| {
            let piped = || Source::stdin(Limit::PROMPT).and_then(|source| source.text(Limit::PROMPT));
            let text = if text == "-" { piped().map_err(Failure::error)? } else { text.clone() };
            Ok(if self.chat { Prompt::Chat(self.conversation(text)) } else { Prompt::Text(text) })
        });
        let prompts: Vec<Prompt> = ids.chain(texts).collect::<Result<_, Failure>>()?;
        Ok(if prompts.is_empty() { Asked::Turns } else { Asked::Prompts(prompts) })
    }

    /// A user's first message.
    fn conversation(&self, text: String) -> Vec<Message> {
        let system = self.system.iter().map(|system| Message::new("system", system));
        system.chain([Message::new("user", text)]).collect()
    }

    /// Counts the tokens that the longest of these sequences needs room for; only where somebody wants to know, since it
    /// takes the model's tokenizer. What cannot be told needs none.
    pub(super) fn longest(&self, model: &Path, asked: &Asked) -> Arc<dyn Fn() -> u64 + Send + Sync> {
        let new = |own: Option<usize>, otherwise| own.or(self.max_new_tokens).unwrap_or(otherwise);
        // A text ends where there is no more room, and has one token at least.
        let asked: Vec<(Prompt, usize)> = match asked {
            Asked::Prompts(prompts) => {
                let otherwise = |prompt: &Prompt| if matches!(prompt, Prompt::Ids(_)) { IDS } else { 1 };
                prompts.iter().map(|prompt| (prompt.clone(), new(None, otherwise(prompt)))).collect()
            }
            Asked::Lines(lines) => lines.iter().map(|line| (line.prompt.clone(), new(line.max_tokens, 1))).collect(),
            Asked::Turns => Vec::new(),
        };
        let model = model.to_owned();
        let counted = LazyLock::new(move || {
            let prompts = Prompts::of_model(&model, usize::MAX);
            let mut templates = Templates::new(&prompts);
            let needed = |(prompt, new): &(Prompt, usize)| Some((templates.ids(prompt).ok()?.len() + new) as u64);
            asked.iter().filter_map(needed).max().unwrap_or(0)
        });
        Arc::new(move || *counted)
    }

    /// The requests of prompts.
    pub(super) fn requests(
        &self,
        session: &Session,
        prompts: &Prompts,
        asked: &[Prompt],
    ) -> Result<Vec<Request>, Failure> {
        let mut templates = Templates::new(prompts);
        let requests = asked.iter().enumerate().map(|(place, prompt)| {
            let default = if matches!(prompt, Prompt::Ids(_)) { IDS } else { TEXT };
            let ids = templates.ids(prompt)?;
            Ok(self.request(session, ids, place, default, None, &SamplingOptions::default()))
        });
        requests.collect()
    }

    /// The request at a place, with what it says itself of its length and of sampling.
    pub(super) fn request(
        &self,
        session: &Session,
        prompt: Vec<u32>,
        place: usize,
        most: usize,
        max_tokens: Option<usize>,
        own: &SamplingOptions,
    ) -> Request {
        let room = session.plan().limits.max_seq_len.saturating_sub(prompt.len() as u64);
        let most = if most == TEXT { most.min(usize::try_from(room).unwrap_or(most)).max(1) } else { most };
        let mut sampling = self.sampling.options().over(&session.generation_config().sampling);
        sampling.seed = sampling.seed.wrapping_add(place as u64);
        Request {
            sampling: own.over(&sampling),
            ..Request::new(prompt, max_tokens.or(self.max_new_tokens).unwrap_or(most))
        }
    }

    /// As [`AskArgs::request`] of text.
    pub(super) fn text_request(
        &self,
        session: &Session,
        prompt: Vec<u32>,
        place: usize,
        max_tokens: Option<usize>,
        own: &SamplingOptions,
    ) -> Request {
        self.request(session, prompt, place, TEXT, max_tokens, own)
    }

    /// What turns the requests' tokens into text; `None` where only ids were given and nothing needs their text.
    pub(super) fn streams<'a>(
        &self,
        prompts: &'a Prompts,
        requests: &[Request],
        asked: &[Prompt],
    ) -> Result<Option<Vec<Option<TextStream<'a>>>>, Failure> {
        if self.stop.is_empty() && asked.iter().all(|prompt| matches!(prompt, Prompt::Ids(_))) {
            return Ok(None);
        }
        let tokenizer = prompts.tokenizer().map_err(Failure::error)?;
        let stream = |request: &Request| Some(TextStream::new(tokenizer, &request.prompt, self.stop.clone()));
        Ok(Some(requests.iter().map(stream).collect()))
    }
}

impl SamplingArgs {
    fn options(&self) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
        }
    }
}

/// What nothing can be sampled with, by its flag.
fn unsampled(error: &SamplingError) -> Failure {
    Failure::new(2, format!("--{}: {error}", error.key().replace('_', "-")))
}

fn stopping(text: &str) -> Result<String, &'static str> {
    no_stop(text).map_or_else(|| Ok(text.to_owned()), Err)
}

fn finite(text: &str) -> Result<f32, String> {
    single(text)
        .and_then(|found| if found.is_finite() { Ok(found) } else { Err("a finite number was expected".to_owned()) })
}

fn parse_ids(text: &str) -> Result<Ids, String> {
    let ids = text.split(',').map(|id| id.trim().parse().map_err(|_| format!("`{id}` is not a token id")));
    ids.collect::<Result<_, _>>().map(Ids)
}
