//! Traces in Mooncake's format, generated with fixed seeds.
//!
//! Sessions start, go on after a while that is drawn anew each time, and end without a word. Many are a single request.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;

/// A kind of traffic. Lengths are in blocks of 512 tokens.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Prompts that sessions share at their start: how many, and their shortest and longest length.
    pub openings: (usize, usize, usize),
    /// Of a hundred sessions, how many start with one of those.
    pub opened: usize,
    /// Mean length of what a session adds first.
    pub first: f64,
    /// Mean length of what each later turn adds.
    pub turn: f64,
    /// Of a hundred requests, after how many the session goes on.
    pub again: usize,
    /// Median number of requests of others until it does.
    pub think: f64,
    /// Mean output, in tokens.
    pub output: usize,
}

/// As published of Mooncake's conversations: prompts of 12,035 tokens, answers of 343, 40 % of the blocks seen before.
pub const CONVERSATION: Traffic =
    Traffic { openings: (8, 1, 4), opened: 50, first: 18.0, turn: 6.0, again: 40, think: 60.0, output: 343 };

/// Of its tools and agents: 8,596, 182, 59 %.
pub const TOOL_AGENT: Traffic =
    Traffic { openings: (10, 3, 21), opened: 80, first: 7.0, turn: 3.0, again: 20, think: 25.0, output: 182 };

/// Of its synthetic one: 15,325, 149, 66 %.
pub const SYNTHETIC: Traffic =
    Traffic { openings: (4, 1, 3), opened: 40, first: 22.5, turn: 3.0, again: 71, think: 40.0, output: 149 };

struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n as u64) as usize
    }

    fn percent(&mut self, p: usize) -> bool {
        self.below(100) < p
    }

    /// At least 1, of this mean, with the tail of an exponential distribution.
    fn length(&mut self, mean: f64) -> usize {
        (1.0 - (mean - 0.5) * (1.0 - self.unit()).ln()) as usize
    }

    /// Of this median, a third of it to three times it within a standard deviation.
    fn wait(&mut self, median: f64) -> f64 {
        let normal: f64 = (0..12).map(|_| self.unit()).sum::<f64>() - 6.0;
        median * (1.1 * normal).exp()
    }

    /// An index below `n`, the first ones being the most likely: about 1 / (i + 1).
    fn popular(&mut self, n: usize) -> usize {
        (((n + 1) as f64).powf(self.unit()) as usize - 1).min(n - 1)
    }
}

impl Traffic {
    /// So many requests in the order of arrival, one JSON object per line.
    pub fn trace(self, requests: usize, seed: u64) -> String {
        let mut dice = Dice(seed);
        let mut fresh = 0_u64;
        let mut blocks = |n: usize| {
            fresh += n as u64;
            fresh - n as u64..fresh
        };
        let (openings, shortest, longest) = self.openings;
        let openings: Vec<Vec<u64>> =
            (0..openings).map(|_| blocks(shortest + dice.below(longest - shortest + 1)).collect()).collect();
        let mut waiting: BinaryHeap<Reverse<(usize, Vec<u64>)>> = BinaryHeap::new();
        let mut lines = String::new();
        for now in 0..requests {
            let mut session = match waiting.peek() {
                Some(Reverse((due, _))) if *due <= now => {
                    let Reverse((_, mut session)) = waiting.pop().unwrap();
                    session.extend(blocks(dice.length(self.turn)));
                    session
                }
                _ => {
                    let opened = dice.percent(self.opened);
                    let mut session = if opened { openings[dice.popular(openings.len())].clone() } else { Vec::new() };
                    session.extend(blocks(dice.length(self.first)));
                    session
                }
            };
            // The last block is partial, and its id stands for no other.
            session.extend(blocks(1));
            let input = session.len() * 512 - dice.below(511);
            let output = 1 + dice.below(2 * self.output - 1);
            writeln!(
                lines,
                r#"{{"timestamp": {now}, "input_length": {input}, "output_length": {output}, "hash_ids": {session:?}}}"#
            )
            .unwrap();
            session.pop();
            if dice.percent(self.again) {
                let next = now + 1 + dice.wait(self.think) as usize;
                waiting.push(Reverse((next, session)));
            }
        }
        lines
    }
}

/// Conversations that grow by whole blocks behind shared tool prompts, `open` of them at a time, each as likely to be
/// next as any other.
pub fn conversations(requests: u64, open: usize, seed: u64) -> String {
    let mut state = seed;
    let mut below = move |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (mut fresh, mut now) = (100, 0);
    let mut sessions: Vec<(Vec<u64>, u64)> = Vec::new();
    let mut lines = String::new();
    for _ in 0..requests {
        if sessions.len() < open {
            sessions.push(((0..4 + 10 * below(3)).collect(), 1 + below(9)));
        }
        let chosen = below(sessions.len() as u64) as usize;
        let (history, turns) = &mut sessions[chosen];
        let new = 1 + below(6);
        history.extend(fresh..fresh + new);
        fresh += new + 1;
        // The last block is partial and its id stands for no other.
        let mut ids = history.clone();
        ids.push(fresh - 1);
        *turns -= 1;
        now += below(900);
        let (input, output) = (history.len() as u64 * 512 + 1 + below(511), 1 + below(400));
        lines += &format!(
            "{{\"timestamp\": {now}, \"input_length\": {input}, \"output_length\": {output}, \"hash_ids\": {ids:?}}}\n"
        );
        if *turns == 0 {
            sessions.swap_remove(chosen);
        }
    }
    lines
}
