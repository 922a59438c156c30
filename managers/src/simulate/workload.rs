//! Synthetic workloads. Seeds are fixed: the same workload is the same trace everywhere.

use serde::{Deserialize, Serialize};

use super::trace::{Piece, TraceRequest, mix};

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Conversations of several turns under few system prompts, single questions, and prompts sent again.
    Chat,
    /// Long contexts that grow by tool results, retry steps, and start sub-tasks from the middle.
    Agents,
    /// Documents of unequal popularity behind a system prompt, each time with another question.
    Rag,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Chat, Self::Agents, Self::Rag];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Agents => "agents",
            Self::Rag => "rag",
        }
    }

    /// Its requests in the order of arrival.
    #[must_use]
    pub fn requests(self) -> Vec<TraceRequest> {
        self.seeded(0)
    }

    /// Other requests of the same kind. Equal seeds give equal requests.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Vec<TraceRequest> {
        let dice = Dice(mix(self as u64 + 1).wrapping_add(mix(seed)));
        match self {
            Self::Chat => chat(dice),
            Self::Agents => agents(dice),
            Self::Rag => rag(dice),
        }
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n as u64) as usize
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn percent(&mut self, p: usize) -> bool {
        self.below(100) < p
    }

    /// A run of tokens that no other run shares.
    fn fresh(&mut self, low: usize, high: usize) -> Piece {
        Piece::Run { id: self.roll(), len: self.between(low, high) }
    }

    /// An index below `n`, the first ones being the most likely: about 1 / (i + 1).
    fn popular(&mut self, n: usize) -> usize {
        let unit = self.roll() as f64 / u64::MAX as f64;
        (((n + 1) as f64).powf(unit) as usize - 1).min(n - 1)
    }
}

/// A conversation in progress.
struct Session {
    history: Vec<Piece>,
    turns: usize,
}

fn chat(mut dice: Dice) -> Vec<TraceRequest> {
    const REQUESTS: usize = 1600;
    const OPEN: usize = 48;
    let systems: Vec<Piece> = (0..6).map(|_| dice.fresh(200, 2000)).collect();
    let mut sessions: Vec<Session> = Vec::new();
    let mut requests: Vec<TraceRequest> = Vec::new();
    while requests.len() < REQUESTS {
        if requests.len() > 20 && dice.percent(8) {
            let recent = requests.len() - 1 - dice.below(20);
            let again = TraceRequest { output: dice.fresh(50, 600), ..requests[recent].clone() };
            requests.push(again);
            continue;
        }
        if sessions.len() < OPEN {
            let system = systems[dice.popular(systems.len())].clone();
            let turns = if dice.percent(35) { 1 } else { dice.between(2, 8) };
            sessions.push(Session { history: vec![system], turns });
        }
        let chosen = dice.below(sessions.len());
        let request = say(&mut dice, &mut sessions[chosen], (20, 900), (50, 600));
        requests.push(request);
        if sessions[chosen].turns == 0 {
            sessions.swap_remove(chosen);
        }
    }
    requests
}

fn agents(mut dice: Dice) -> Vec<TraceRequest> {
    const REQUESTS: usize = 700;
    const OPEN: usize = 20;
    let tools: Vec<Piece> = (0..3).map(|_| dice.fresh(2500, 5000)).collect();
    let mut sessions: Vec<Session> = Vec::new();
    let mut requests: Vec<TraceRequest> = Vec::new();
    while requests.len() < REQUESTS {
        if sessions.len() < OPEN {
            let task = dice.fresh(100, 1500);
            let history = vec![tools[dice.below(tools.len())].clone(), task];
            let turns = dice.between(6, 24);
            sessions.push(Session { history, turns });
        }
        let chosen = dice.below(sessions.len());
        if dice.percent(6) {
            // A sub-task starts from an earlier step and goes its own way.
            let keep = dice.between(2, sessions[chosen].history.len());
            let history = sessions[chosen].history[..keep].to_vec();
            let turns = dice.between(2, 6);
            sessions.push(Session { history, turns });
        }
        let request = say(&mut dice, &mut sessions[chosen], (100, 2000), (40, 400));
        if dice.percent(5) {
            let output = dice.fresh(40, 400);
            requests.push(TraceRequest { output, ..request.clone() });
        }
        requests.push(request);
        if sessions[chosen].turns == 0 {
            sessions.swap_remove(chosen);
        }
    }
    requests
}

fn rag(mut dice: Dice) -> Vec<TraceRequest> {
    const REQUESTS: usize = 1500;
    let systems: Vec<Piece> = (0..3).map(|_| dice.fresh(300, 900)).collect();
    let documents: Vec<Piece> = (0..300).map(|_| dice.fresh(400, 3000)).collect();
    (0..REQUESTS)
        .map(|_| {
            let mut prompt = vec![systems[dice.popular(systems.len())].clone()];
            // The best match comes first, and what is found beside it depends on it.
            let first = dice.popular(documents.len());
            prompt.push(documents[first].clone());
            for near in 1..dice.between(1, 3) {
                let neighbour = (first + near * dice.between(1, 4)) % documents.len();
                prompt.push(documents[neighbour].clone());
            }
            prompt.push(dice.fresh(15, 120));
            TraceRequest { prompt, output: dice.fresh(60, 350), tenant: 0 }
        })
        .collect()
}

/// The next turn: what was said so far, something new, and the answer to it.
fn say(dice: &mut Dice, session: &mut Session, input: (usize, usize), output: (usize, usize)) -> TraceRequest {
    session.history.push(dice.fresh(input.0, input.1));
    let prompt = session.history.clone();
    let answer = dice.fresh(output.0, output.1);
    session.history.push(answer.clone());
    session.turns -= 1;
    TraceRequest { prompt, output: answer, tenant: 0 }
}
