//! A fleet that is routed by what its workers' events say: `fleet FOLDER` with Mooncake's traces in the folder.
//!
//! The same workers and requests, routed four ways: by the index with its states, by one that takes every event for keys, by one
//! that sees the group of keys alone, and in turns. What is counted are the tokens that the workers really went on from.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "an example")]

mod worker;

use std::path::Path;

use cacheplan_index::{Batch, Bounds, Event, Index, Prompt};
use serde::Deserialize;
use worker::Worker;

#[derive(Deserialize)]
struct Scenario {
    workers: usize,
    pages: usize,
    block: usize,
    state_groups: usize,
    chunk: usize,
    tokens_per_second: f64,
    times_faster: f64,
    trace: Vec<Trace>,
}

#[derive(Deserialize)]
struct Trace {
    name: String,
    blake3: String,
}

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: usize,
    hash_ids: Vec<u64>,
}

struct Request {
    seconds: f64,
    tokens: usize,
    hashes: Vec<u64>,
}

const ID_TOKENS: usize = 512;

impl Request {
    /// A block's hash is that of the ids up to its end, and of where it ends.
    fn new(line: &Line, scenario: &Scenario) -> Self {
        let mut chains = Vec::new();
        for id in &line.hash_ids {
            let before = chains.last().copied().unwrap_or(0_u64);
            chains.push((before ^ (id + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        }
        let tokens = line.input_length.min(line.hash_ids.len() * ID_TOKENS).max(1);
        let ends = (1..=tokens / scenario.block).map(|block| block * scenario.block);
        let hashes = ends.map(|end| chains[(end - 1) / ID_TOKENS] ^ (end as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9));
        Self { seconds: line.timestamp / 1000.0 / scenario.times_faster, tokens, hashes: hashes.collect() }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Router {
    Ours,
    AllAsKeys,
    MainGroup,
    Turns,
}

impl Router {
    const ALL: [(Self, &str); 4] = [
        (Self::Ours, "index with states"),
        (Self::AllAsKeys, "every event as keys"),
        (Self::MainGroup, "the main attention group alone"),
        (Self::Turns, "in turns"),
    ];

    /// What of an event reaches the router.
    fn sees(self, event: Event) -> Option<Event> {
        match event {
            _ if self == Self::Ours => Some(event),
            Event::Stored(stored) if self == Self::AllAsKeys => Some(Event::Stored(cacheplan_index::Stored {
                group: Some(0),
                kind: Some(cacheplan_index::Kind::Full),
                ..stored
            })),
            Event::Removed { hashes, on_device, .. } if self == Self::AllAsKeys => {
                Some(Event::Removed { hashes, group: Some(0), window: None, on_device })
            }
            Event::Stored(ref stored) if stored.group == Some(0) => Some(event),
            Event::Removed { group: Some(0), .. } => Some(event),
            _ => None,
        }
    }
}

fn run(scenario: &Scenario, requests: &[Request], router: Router) -> (usize, usize) {
    let index = Index::new(Bounds::default());
    let mut workers: Vec<Worker> =
        (0..scenario.workers).map(|_| Worker::new(scenario.pages, scenario.block, scenario.state_groups)).collect();
    let mut numbers = vec![0; scenario.workers];
    // When each will have computed all that it was given, and when it was chosen last.
    let (mut busy, mut chosen_at) = (vec![0.0_f64; scenario.workers], vec![0; scenario.workers]);
    let (mut reused, mut promised) = (0, 0);
    for (number, request) in requests.iter().enumerate() {
        let mut believed = vec![0; scenario.workers];
        if router != Router::Turns {
            let prompt = Prompt::Hashes { hashes: &request.hashes, block: scenario.block, tokens: request.tokens };
            for answer in index.ask(prompt) {
                believed[answer.who.worker as usize] = answer.reuse.tokens;
            }
        }
        let cost = |worker: usize| {
            let before = (busy[worker] - request.seconds).max(0.0) * scenario.tokens_per_second;
            before + (request.tokens - believed[worker]) as f64
        };
        let chosen = match router {
            Router::Turns => number % scenario.workers,
            _ => (0..scenario.workers)
                .min_by(|one, other| cost(*one).total_cmp(&cost(*other)).then(chosen_at[*one].cmp(&chosen_at[*other])))
                .unwrap(),
        };
        chosen_at[chosen] = number + 1;
        promised += believed[chosen];
        let of_this = workers[chosen].serve(&request.hashes, request.tokens, scenario.chunk);
        reused += of_this;
        let spent = (request.tokens - of_this) as f64 / scenario.tokens_per_second;
        busy[chosen] = busy[chosen].max(request.seconds) + spent;
        let events = workers[chosen].events.drain(..).filter_map(|event| router.sees(event)).collect();
        index.take(chosen as u64, numbers[chosen], &Batch { rank: 0, events }.to_msgpack()).unwrap();
        numbers[chosen] += 1;
    }
    (reused, promised)
}

fn main() {
    let folder = std::env::args().nth(1).expect("fleet FOLDER, where Mooncake's traces lie");
    let scenario: Scenario = toml::from_str(include_str!("scenario.toml")).unwrap();
    for trace in &scenario.trace {
        let text = std::fs::read_to_string(Path::new(&folder).join(&trace.name)).unwrap();
        assert_eq!(
            blake3::hash(text.as_bytes()).to_hex().as_str(),
            trace.blake3,
            "another {} than was committed",
            trace.name
        );
        let lines = text.lines().map(|line| serde_json::from_str::<Line>(line).unwrap());
        let mut requests: Vec<Request> = lines.map(|line| Request::new(&line, &scenario)).collect();
        requests.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        let asked: usize = requests.iter().map(|request| request.tokens).sum();
        println!("{}: {} requests, {asked} tokens", trace.name, requests.len());
        for (router, name) in Router::ALL {
            let (reused, promised) = run(&scenario, &requests, router);
            let percent = |tokens: usize| 100.0 * tokens as f64 / asked as f64;
            println!("  {name}: {reused} tokens reused, {:.2} %; {:.2} % promised", percent(reused), percent(promised));
        }
    }
}
