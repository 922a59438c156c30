//! A fleet that is routed by what its workers' events say: `fleet FOLDER [SCENARIO.toml]`, with Mooncake's traces in the folder.
//!
//! The same workers and requests, routed five ways: by the index with all groups, by one that takes every event for keys, by one
//! that takes every event for a prefix without gaps, by one that sees the group of keys alone, and in turns. What is counted are
//! the tokens that the workers really went on from.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "an example")]

mod misread;
mod trace;
mod worker;

use std::cmp::Reverse;

use cacheplan_index::{Batch, Bounds, Event, Index, Kind, Prompt, Stored};
use misread::Misread;
use serde::Deserialize;
use trace::{Request, Trace};
use worker::{Checkpoints, Set, Worker};

#[derive(Deserialize)]
struct Scenario {
    workers: usize,
    pages: usize,
    /// Tokens of a block of keys.
    block: usize,
    #[serde(default)]
    state_groups: u32,
    #[serde(default)]
    window: Vec<Window>,
    #[serde(default)]
    checkpoints: Checkpoints,
    chunk: usize,
    tokens_per_second: f64,
    #[serde(flatten)]
    load: Load,
    #[serde(default)]
    ties: Ties,
    /// Prompts end where their last whole id does.
    #[serde(default)]
    whole_ids: bool,
    trace: Vec<Trace>,
}

#[derive(Deserialize)]
struct Window {
    block: usize,
    tokens: usize,
}

/// How fast requests come.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Load {
    TimesFaster(f64),
    RequestsPerMinute(f64),
}

/// Who is chosen of those that cost the same.
#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Ties {
    #[default]
    LongestAgo,
    /// Who has the most keys, then who was chosen longest ago.
    MostKeys,
}

impl Scenario {
    /// Keys, states, windows; groups are numbered in this order.
    fn sets(&self) -> Vec<Set> {
        let mut sets = vec![Set { groups: 0..=0, kind: Kind::Full, block: self.block, window: 0 }];
        if self.state_groups > 0 {
            sets.push(Set { groups: 1..=self.state_groups, kind: Kind::State, block: self.block, window: 0 });
        }
        for window in &self.window {
            let group = sets.last().map_or(0, |set| set.groups.end() + 1);
            sets.push(Set { groups: group..=group, kind: Kind::Window, block: window.block, window: window.tokens });
        }
        sets
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Router {
    Ours,
    AllAsKeys,
    WithoutGaps,
    MainGroup,
    Turns,
}

impl Router {
    const ALL: [(Self, &str); 5] = [
        (Self::Ours, "index with all groups"),
        (Self::AllAsKeys, "every event as keys"),
        (Self::WithoutGaps, "every event as a prefix without gaps"),
        (Self::MainGroup, "the main attention group alone"),
        (Self::Turns, "in turns"),
    ];

    /// What of an event reaches the index.
    fn sees(self, event: Event) -> Option<Event> {
        match event {
            _ if self == Self::Ours => Some(event),
            Event::Stored(stored) if self == Self::AllAsKeys => {
                Some(Event::Stored(Stored { group: Some(0), kind: Some(Kind::Full), window: None, ..stored }))
            }
            Event::Removed { hashes, on_device, .. } if self == Self::AllAsKeys => {
                Some(Event::Removed { hashes, group: Some(0), window: None, on_device })
            }
            Event::Stored(ref stored) if stored.group == Some(0) => Some(event),
            Event::Removed { group: Some(0), .. } => Some(event),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Outcome {
    reused: usize,
    promised: usize,
    /// From arrival until a prompt is computed, of all.
    seconds: f64,
}

fn run(scenario: &Scenario, sets: &[Set], requests: &[Request], faster: f64, router: Router) -> Outcome {
    let (index, mut misread) = (Index::new(Bounds::default()), Misread::default());
    let finest = sets.iter().map(|set| set.block).min().unwrap();
    let worker = || Worker::new(sets, scenario.block, scenario.pages, scenario.checkpoints, scenario.chunk);
    let mut workers: Vec<Worker<'_>> = (0..scenario.workers).map(|_| worker()).collect();
    let mut numbers = vec![0; scenario.workers];
    // When each will have computed all that it was given, and when it was chosen last.
    let (mut busy, mut chosen_at) = (vec![0.0_f64; scenario.workers], vec![0; scenario.workers]);
    let mut outcome = Outcome::default();
    for (number, request) in requests.iter().enumerate() {
        let now = request.seconds / faster;
        let (mut believed, mut keys) = (vec![0; scenario.workers], vec![0; scenario.workers]);
        match router {
            Router::Turns => {}
            Router::WithoutGaps => misread.believed(request, &mut believed),
            Router::Ours | Router::AllAsKeys | Router::MainGroup => {
                let hashes: Vec<u64> =
                    (1..=request.tokens / finest).map(|block| request.hash(block * finest)).collect();
                let prompt = Prompt::Hashes { hashes: &hashes, block: finest, tokens: request.tokens };
                for answer in index.ask(prompt) {
                    let worker = answer.who.worker as usize;
                    (believed[worker], keys[worker]) = (answer.reuse.tokens, answer.reuse.keys);
                }
            }
        }
        let cost = |worker: usize| {
            (busy[worker] - now).max(0.0) * scenario.tokens_per_second + (request.tokens - believed[worker]) as f64
        };
        let tie = |worker: usize| {
            (Reverse(if scenario.ties == Ties::MostKeys { keys[worker] } else { 0 }), chosen_at[worker])
        };
        let order =
            |one: &usize, other: &usize| cost(*one).total_cmp(&cost(*other)).then_with(|| tie(*one).cmp(&tie(*other)));
        let chosen = match router {
            Router::Turns => number % scenario.workers,
            _ => (0..scenario.workers).min_by(order).unwrap(),
        };
        chosen_at[chosen] = number + 1;
        outcome.promised += believed[chosen];
        let reused = workers[chosen].serve(request);
        outcome.reused += reused;
        busy[chosen] = busy[chosen].max(now) + (request.tokens - reused) as f64 / scenario.tokens_per_second;
        outcome.seconds += busy[chosen] - now;
        let said: Vec<_> = workers[chosen].said.drain(..).collect();
        if router == Router::WithoutGaps {
            said.iter().for_each(|one| misread.take(chosen, one, request));
        }
        let events = said.iter().flat_map(|one| one.events(sets, request)).filter_map(|event| router.sees(event));
        let batch = Batch { events: events.collect(), ..Batch::default() };
        index.take(chosen as u64, numbers[chosen], &batch.to_msgpack()).unwrap();
        numbers[chosen] += 1;
    }
    outcome
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("fleet FOLDER [SCENARIO.toml], where Mooncake's traces lie in the folder");
    let scenario = arguments.next().map(|path| std::fs::read_to_string(path).unwrap());
    let scenario: Scenario = toml::from_str(scenario.as_deref().unwrap_or(include_str!("scenario.toml"))).unwrap();
    let sets = scenario.sets();
    for trace in &scenario.trace {
        let requests = trace.read(folder.as_ref(), scenario.whole_ids);
        let asked: usize = requests.iter().map(|request| request.tokens).sum();
        let faster = match scenario.load {
            Load::TimesFaster(times) => times,
            Load::RequestsPerMinute(rate) => {
                let minutes = requests.last().map_or(0.0, |request| request.seconds) / 60.0;
                rate * minutes / requests.len() as f64
            }
        };
        println!("{}: {} requests, {asked} tokens", trace.name, requests.len());
        for (router, name) in Router::ALL {
            let Outcome { reused, promised, seconds } = run(&scenario, &sets, &requests, faster, router);
            let percent = |tokens: usize| 100.0 * tokens as f64 / asked as f64;
            let mean = seconds / requests.len() as f64;
            let (of, said) = (percent(reused), percent(promised));
            println!("  {name}: {reused} tokens reused, {of:.2} %; {said:.2} % promised; computed after {mean:.3} s");
        }
    }
}
